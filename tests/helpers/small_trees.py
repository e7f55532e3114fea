"""Small datasets with the layout of the real ones."""

import gzip
import io
import struct
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from swad.testbed.data import mnist
from swad.testbed.data.benchmark import Benchmark


@lru_cache
def png(value: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(out, "PNG")
    return out.getvalue()


def save_image(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(value % 256))


def make_tree(root: Path, domains: list[str], classes: list[str], per_class: int = 3) -> Path:
    value = 0
    for domain in domains:
        for name in classes:
            for i in range(per_class):
                value += 1
                save_image(root / domain / name / f"{i:03}.png", value)
    return root


def class_names(benchmark: Benchmark) -> list[str]:
    return list(benchmark.classes or [f"class_{i:03}" for i in range(benchmark.n_classes or 2)])


def make_idx(root: Path, train: int = 40, test: int = 20, zipped: bool = True) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    draw = np.random.RandomState(0)
    for name in mnist.FILES:
        n = train if name.startswith("train") else test
        if "images" in name:
            array = draw.randint(0, 256, (n, 28, 28)).astype(np.uint8)
        else:
            array = (np.arange(n) % 10).astype(np.uint8)
        data = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
        if zipped:
            (root / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (root / name).write_bytes(data)
    return root


def make_camelyon17(root: Path) -> Path:
    """Write patches and metadata as the archive of WILDS has them: all columns, and numbers with leading zeros."""
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for i in range(20):
        center, tumor, node = i % 5, i // 5 % 2, f"patient_{i:03}_node_{i % 3}"
        lines.append(f"{i},{i:03},{i % 3},{32 * i},{64 * i},{tumor},{i // 2},{center},{i % 4}")
        save_image(root / "patches" / node / f"patch_{node}_x_{32 * i}_y_{64 * i}.png", i)
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def make_fmow(root: Path) -> Path:
    """Write images and metadata as the archive of WILDS has them; one image of every class is withheld."""
    codes = ["NAM,Africa", "USA,Americas", "JPN,Asia", "FRA,Europe", "FJI,Oceania", "ATA,"]
    root.mkdir(parents=True, exist_ok=True)
    (root / "country_code_mapping.csv").write_text("alpha-3,region\n" + "\n".join(codes) + "\n")
    lines = ["split,img_filename,category,country_code,timestamp"]
    for label in range(62):
        for i, code in enumerate([*(line.split(",")[0] for line in codes), "XKX", "USA"]):
            split = "seq" if i == 7 else ("train", "val", "test")[i % 3]
            if split != "seq":
                save_image(root / "images" / f"rgb_img_{len(lines) - 1}.png", len(lines))
            lines.append(f"{split},x_{i}.jpg,class_{label:02},{code},2016-01-01T00:00:00Z")
    (root / "rgb_metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def make(benchmark: Benchmark, root: Path) -> Path | None:
    """Write a small dataset that the benchmark can read, and return the root to load it from."""
    if benchmark.layout == "embedded":
        return None
    if benchmark.layout == "idx":
        return make_idx(root / "MNIST").parent
    if benchmark.name == "Camelyon17":
        return make_camelyon17(root / benchmark.folder).parent
    if benchmark.name == "FMoW":
        return make_fmow(root / benchmark.folder).parent
    domains = list(benchmark.domains) or ["left", "right"]
    make_tree(root / benchmark.folder, domains, class_names(benchmark), 1 if (benchmark.n_classes or 0) > 20 else 3)
    return root

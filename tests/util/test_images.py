"""Image files are decoded as the protocol says."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.special_files import at_most, replace_by
from swad.testbed.data.domains import FileDomain
from swad.util.images import EXTENSIONS, FORMATS, MAX_MEGAPIXELS, DataError, image_files, read_image


def test_a_broken_image_is_named(tmp_path):
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"no image at all")
    with pytest.raises(DataError, match=r"cannot decode image .*broken\.jpg"):
        read_image(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "image.png"
    replace_by(kind, path)
    domain = FileDomain("a", np.zeros(1, np.int64), tmp_path, ("image.png",))
    with at_most(5), pytest.raises(DataError, match=r"cannot decode image .*image.png: image.png is a pipe or a dev"):
        read_image(path)
    with at_most(5), pytest.raises(DataError, match=r"cannot read image .*image.png: image.png is a pipe or a dev"):
        domain.content(0)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bit_gray_images_are_scaled_to_8_bits(tmp_path, suffix):
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / f"deep.{suffix}")
    decoded = np.asarray(read_image(tmp_path / f"deep.{suffix}"))
    assert (decoded == np.arange(256).reshape(16, 16, 1)).all()
    # Pillow scales 16-bit colors in the same way.
    image = Image.new("I;16B", (2, 1))
    image.putdata([300, 65535])
    image.save(tmp_path / "big_endian.tif")
    assert np.asarray(read_image(tmp_path / "big_endian.tif"))[..., 0].tolist() == [[1, 255]]


def write_tiff(path: Path, pixels: bytes, bits: int, white_is_zero: bool = False) -> None:
    """Write a gray image of two pixels."""
    tags = {256: 2, 257: 1, 258: bits, 259: 1, 262: int(not white_is_zero)}  # width, height, bits, compression, white
    tags |= {273: 8, 277: 1, 278: 1, 279: len(pixels)}
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    header = struct.pack("<2sHI", b"II", 42, 8 + len(pixels)) + pixels
    path.write_bytes(header + struct.pack("<H", len(tags)) + directory + bytes(4))


def test_12_bit_images_are_scaled_to_8_bits(tmp_path):
    white, gray = 0xFFF, 0x800
    write_tiff(tmp_path / "x.tif", bytes([white >> 4, (white & 15) << 4 | gray >> 8, gray & 255, 0]), 12)
    assert np.asarray(read_image(tmp_path / "x.tif")).tolist() == [[[255] * 3, [128] * 3]]


def test_16_bit_images_in_which_0_is_white_are_inverted(tmp_path):
    for white_is_zero, expected in ((False, [0, 128]), (True, [255, 127])):
        write_tiff(tmp_path / "x.tif", struct.pack("<HH", 0, 0x8000), 16, white_is_zero)
        assert np.asarray(read_image(tmp_path / "x.tif"))[0, :, 0].tolist() == expected


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path, recwarn):
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).quantize(16)
    image.save(tmp_path / "x.png", transparency=bytes(range(16)))
    assert (np.asarray(read_image(tmp_path / "x.png")) == np.asarray(image.convert("RGB"))).all()
    assert not recwarn.list


def test_16_bit_images_that_pillow_widened_are_scaled_too(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "older.png")
    wide = Image.fromarray(np.full((2, 2), 51400, np.int32))
    wide.format = "PNG"
    monkeypatch.setattr(Image, "open", lambda path, **_: wide)
    assert (np.asarray(read_image(tmp_path / "older.png")) == 200).all()


@pytest.mark.parametrize(("dtype", "mode"), [(np.int32, "I"), (np.float32, "F")])
def test_pixels_without_a_defined_range_are_refused(tmp_path, dtype, mode):
    Image.fromarray(np.ones((4, 4), dtype)).save(tmp_path / "x.tif")
    with pytest.raises(DataError, match=rf"x\.tif: pixels of mode {mode} .* save it with 8 or 16 bits;") as caught:
        read_image(tmp_path / "x.tif")
    assert "\n" not in str(caught.value)


def test_orientation_and_alpha_are_ignored(tmp_path):
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "x.png", exif=exif)
    assert (np.asarray(read_image(tmp_path / "x.png")) == np.asarray(image)[..., :3]).all()


def png(width: int, height: int, data: bytes, depth: int = 8, color: int = 2, interlaced: int = 0) -> bytes:
    """Return a PNG file with these decompressed data, whatever its header says."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    palette = chunk(b"PLTE", bytes(range(48))) if color == 3 else b""
    parts = [chunk(b"IDAT", part) for part in (zlib.compress(data)[:20], zlib.compress(data)[20:])]
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette + b"".join(parts) + chunk(b"IEND", b"")


def test_a_png_file_that_holds_fewer_rows_than_it_declares_is_refused(tmp_path):
    rows = (b"\0" + bytes(range(96))) * 3
    for content in (rows, rows[:-50], b""):
        (tmp_path / "x.png").write_bytes(png(32, 32, content))
        with pytest.raises(DataError, match=r"cannot decode image .*x\.png: image file is truncated"):
            read_image(tmp_path / "x.png")
        with pytest.raises(DataError, match="image file is truncated"):
            read_image(tmp_path / "x.tar" / "byte 0", io.BytesIO(png(32, 32, content)))


@pytest.mark.parametrize("interlaced", [0, 1])
@pytest.mark.parametrize(("depth", "color", "bits"), [(8, 2, 24), (16, 6, 64), (1, 0, 1), (2, 3, 2), (16, 4, 32)])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (5, 3), (9, 17)])
@pytest.mark.parametrize("pixel", [b"\x00", b"\xff"])
def test_a_png_file_is_read_if_it_holds_all_its_rows(tmp_path, pixel, width, height, depth, color, bits, interlaced):
    passes = [(1, 1, 0, 0)]
    if interlaced:
        passes = [(8, 8, 0, 0), (8, 8, 4, 0), (4, 8, 0, 4), (4, 4, 2, 0), (2, 4, 0, 2), (2, 2, 1, 0), (1, 2, 0, 1)]
    data = b""
    for right, down, left, top in passes:
        columns, rows = len(range(left, width, right)), len(range(top, height, down))
        if columns and rows:
            row = b"\0" + pixel * ((columns * bits + 7) // 8)
            data += row * rows
    (tmp_path / "x.png").write_bytes(png(width, height, data, depth, color, interlaced))
    assert read_image(tmp_path / "x.png").size == (width, height)
    for lacking in (1, len(row)):
        (tmp_path / "x.png").write_bytes(png(width, height, data[:-lacking], depth, color, interlaced))
        with pytest.raises(DataError, match="image file is truncated"):
            read_image(tmp_path / "x.png")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_is_read_whatever_the_extension(tmp_path, name):
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    for extension in EXTENSIONS:
        image.save(tmp_path / f"x{extension}", format=name)
        assert read_image(tmp_path / f"x{extension}").size == (4, 4)


@pytest.mark.parametrize("name", ["EPS", "PDF", "GIF", "ICO", "SGI"])
def test_no_other_format_is_opened(tmp_path, name, monkeypatch):
    from PIL import EpsImagePlugin

    def no_ghostscript(*arguments, **options):
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", no_ghostscript)
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png", format=name)
    with pytest.raises(DataError, match=r"x\.png: it is in no known image format; replace or remove it$"):
        read_image(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("width", "height", "pixels"),
    [(10_001, 12_000, "120,012,000"), (13_350, 13_350, "178,222,500"), (10**5, 10**5, "10,000,000,000")],
)
def test_an_image_above_the_limit_is_refused_before_it_is_decoded(tmp_path, width, height, pixels, recwarn):
    (tmp_path / "x.png").write_bytes(png(width, height, b""))
    with pytest.raises(DataError) as caught:
        read_image(tmp_path / "x.png")
    assert str(caught.value) == (
        f"an image must have at most 120 megapixels, but {tmp_path / 'x.png'} has {pixels} pixels: shrink, "
        "replace or remove it"
    )
    assert not recwarn.list


def test_photographs_of_the_largest_cameras_are_below_the_limit():
    assert all(width * height <= MAX_MEGAPIXELS * 1e6 for width, height in ((12_000, 9_000), (11_648, 8_736)))


def test_image_files_are_those_of_known_formats_without_hidden_ones_and_folders(tmp_path):
    for name in ("b.png", "a.JPG", ".hidden.png", "notes.txt", "inner/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    assert image_files(tmp_path) == ["a.JPG", "b.png"]

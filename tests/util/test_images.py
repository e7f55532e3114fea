"""Image files are decoded as the protocol says."""

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from swad.util.images import DataError, read_image


def test_a_broken_image_is_named(tmp_path):
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"no image at all")
    with pytest.raises(DataError, match=r"cannot decode image .*broken\.jpg"):
        read_image(path)


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
    monkeypatch.setattr(Image, "open", lambda path: wide)
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

"""The transforms equal DomainBed's."""

import pickle

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from torchvision import transforms as v1

from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.transforms import Normalize, PredictorTransform, eval_transform, to_pil, train_transform
from swad.testbed.training.recipes import ImageNetRecipe
from swad.util.images import DataError


@pytest.mark.parametrize("chosen", [Augmentation(), Augmentation(crop=0.8, flip=0.2, jitter=0.4, grayscale=0)])
def test_transforms_equal_torchvisions_first_version(chosen):
    # DomainBed uses the older torchvision transforms; they draw from the same stream.
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (20, 24, 3)).astype(np.uint8))
    normalize = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    twin = v1.Compose(
        [
            v1.RandomResizedCrop(224, scale=(chosen.crop, 1.0)),
            v1.RandomHorizontalFlip(chosen.flip),
            v1.ColorJitter(chosen.jitter, chosen.jitter, chosen.jitter, chosen.jitter),
            v1.RandomGrayscale(chosen.grayscale),
            v1.ToTensor(),
            normalize,
        ]
    )
    image_spec = ImageSpec()
    for seed in range(12):
        torch.manual_seed(seed)
        ours = Normalize(image_spec)(train_transform(image_spec, chosen)(image)[None])[0]
        torch.manual_seed(seed)
        torch.testing.assert_close(ours, twin(image))
    ours = Normalize(image_spec)(eval_transform(image_spec)(image)[None])[0]
    twin = v1.Compose([v1.Resize((224, 224)), v1.ToTensor(), normalize])
    torch.testing.assert_close(ours, twin(image))
    without = Augmentation(crop=1, flip=0, jitter=0, grayscale=0)
    assert train_transform(image_spec, without)(image).equal(eval_transform(image_spec)(image))
    default = Augmentation()
    assert (default.crop, default.flip, default.jitter, default.grayscale) == (0.7, 0.5, 0.3, 0.1)


def test_the_center_of_an_image_is_that_of_imagenets_evaluation():
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (300, 400, 3)).astype(np.uint8))
    twin = v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.PILToTensor()])
    assert eval_transform(ImageSpec(center_crop=True))(image).equal(twin(image))


def test_low_resolution_images_are_not_changed():
    image_spec = ImageSpec(size=6, low_res=True)
    for channels in (1, 3):
        image = np.random.RandomState(0).randint(0, 256, (6, 6, channels)).astype(np.uint8)
        for transform in (train_transform(image_spec), eval_transform(image_spec)):
            pixels = transform(to_pil(image))
            assert pixels.equal(torch.from_numpy(image).permute(2, 0, 1))
            assert pixels.equal(v1.PILToTensor()(to_pil(image)))
            assert pixels.is_contiguous()
            with pytest.raises(DataError, match="which must be 6 × 6, got 5 × 6: resize the image"):
                transform(to_pil(image[:5]))


def test_the_transform_of_a_predictor_takes_a_path_an_array_or_a_picture(tmp_path):
    transform = pickle.loads(pickle.dumps(PredictorTransform(ImageSpec(size=16))))
    pixels = np.random.RandomState(0).randint(0, 256, (20, 24, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    expected = Normalize(ImageSpec())(eval_transform(ImageSpec(size=16))(Image.fromarray(pixels)))
    for image in (tmp_path / "image.png", str(tmp_path / "image.png"), pixels, Image.fromarray(pixels)):
        assert transform(image).equal(expected)
    assert transform(pixels[..., 0]).equal(transform(pixels[..., :1].repeat(3, 2)))  # gray
    assert transform(np.concatenate([pixels, pixels[..., :1]], 2)).equal(expected)  # alpha is dropped
    wrong = [pixels / 255, pixels[None], pixels[:0], torch.from_numpy(pixels), [1], None, pixels.repeat(2, 2)]
    for image in wrong:
        with pytest.raises(DataError, match=r"must be a path, a PIL image or a uint8 array .*, got .*: convert it$"):
            transform(image)
    with pytest.raises(DataError, match=r"nowhere\.png"):
        transform("nowhere.png")


def test_the_orientation_of_a_file_is_ignored_as_in_training(tmp_path):
    pixels = np.random.RandomState(0).randint(0, 256, (20, 24, 3)).astype(np.uint8)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    transform = PredictorTransform(ImageSpec(size=16))
    assert transform(tmp_path / "turned.png").equal(transform(pixels))
    assert transform(Image.open(tmp_path / "turned.png")).equal(transform(pixels))


def test_normalization_needs_one_mean_per_channel():
    with pytest.raises(DataError, match="must have 1 values, one per channel, got 3 and 3"):
        Normalize(ImageSpec(channels=1))


def test_imagenet_transforms_keep_proportions():
    """A wide image loses its sides in evaluation, and crops of training may be small."""
    wide = Image.fromarray(np.repeat(np.arange(40, dtype=np.uint8)[None, :, None], 20, 0).repeat(3, 2) * 6)
    center = eval_transform(ImageSpec(size=14, center_crop=True))(wide)
    assert center.shape == (3, 14, 14)
    # 40 x 20 pixels become 32 x 16, of which columns 9 to 22 remain: 11.25 to 28.75 of the original.
    assert center[0, 7, 0].item() == pytest.approx(11.375 * 6, abs=3)
    assert center[0, 7, -1].item() == pytest.approx(27.6 * 6, abs=3)
    crop = train_transform(ImageSpec(size=14), Augmentation(**ImageNetRecipe.AUGMENTATION))
    torch.manual_seed(0)
    widths = [abs(int(image[0, 7, -1]) - int(image[0, 7, 0])) for image in (crop(wide) for _ in range(30))]
    assert min(widths) < 40 < max(widths)

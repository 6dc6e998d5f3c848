"""Images as calibration data."""

import detent
import numpy as np
import pytest
import support
from PIL import Image

PHOTOS = support.MODELS / "photos"


def test_images_are_samples(tmp_path):
    images = detent.data.images(PHOTOS, (48, 32), mean=(0.5, 0.4, 0.3), std=0.25, name="x")
    assert len(images) == len([p for p in PHOTOS.iterdir() if p.suffix in (".png", ".jpg")])
    first = next(iter(images))["x"]
    assert (first.shape, first.dtype) == ((1, 3, 32, 48), np.float32)
    path = sorted(PHOTOS.glob("*.[pj][np]g"))[0]
    pixels = np.asarray(Image.open(path).convert("RGB").resize((48, 32), Image.Resampling.BILINEAR), np.float32)
    expected = (pixels / 255 - np.array([0.5, 0.4, 0.3], np.float32)) / np.float32(0.25)
    np.testing.assert_allclose(first[0], expected.transpose(2, 0, 1), atol=1e-6)
    nhwc = next(iter(detent.data.images(PHOTOS, 16, layout="nhwc", channels="BGR")))[""]
    rgb = next(iter(detent.data.images(PHOTOS, 16)))[""]
    np.testing.assert_array_equal(nhwc[0, ..., 0], rgb[0, 2])
    assert next(iter(detent.data.images(PHOTOS, 16, channels="L")))[""].shape == (1, 1, 16, 16)


def test_images_calibrate_a_model_twice_over(model):
    images = detent.data.images(PHOTOS, 16)
    quantized = detent.quantize(model, data=images, config={"finetune": "gptq"})
    assert quantized.result.samples == len(images)


@pytest.mark.parametrize("preset", ["imagenet", "01", "11", "255", "yolo"])
def test_presets_are_those_of_the_command(preset, model, tmp_path):
    detent.quantize(model, tmp_path / "a.onnx", detent.data.images(PHOTOS, preset=preset), {"preset": "plain"})
    words = ["--images", PHOTOS, "--image-preset", preset, "--no-bench"]
    result = support.detent("quantize", model, "-o", tmp_path / "b.onnx", *words)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.full
def test_pictures_by_preset_are_samples_of_every_call(model, tmp_path):
    pictures = detent.data.images(PHOTOS, preset="01")
    quantized = detent.quantize(model, tmp_path / "q.onnx", pictures, {"preset": "plain", "max_samples": 3})
    assert quantized.samples == 3
    assert detent.compare(model, tmp_path / "q.onnx", pictures).samples == len([*detent.data.images(PHOTOS, 16)])
    assert detent.calibrate(model, tmp_path / "s.stats", pictures).samples > 0
    assert not detent.bench(model, data=pictures).synthetic
    with pytest.raises(detent.UsageError, match="no model"):
        detent.bench()
    for preset, more, says in [("42", {}, "imagenet"), ("01", {"mean": 0.5}, "leave them out"), ("01", {"size": -1}, "pixels")]:
        with pytest.raises(detent.UsageError, match=says):
            detent.quantize(model, None, detent.data.images(PHOTOS, preset=preset, **more))


def test_what_is_no_image_is_named(tmp_path, model):
    with pytest.raises(detent.BadInput, match="holds no images"):
        detent.data.images(tmp_path, 16)
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(detent.BadInput, match=r"broken\.png' cannot be read"):
        detent.quantize(model, data=detent.data.images(tmp_path, 16))
    with pytest.raises(detent.UsageError, match="layout: 'chw'"):
        detent.data.images(PHOTOS, 16, layout="chw")
    with pytest.raises(detent.UsageError, match="mean has 2 values"):
        detent.data.images(PHOTOS, 16, mean=(1, 2))


def test_samples_as_loaders_give_them(model):
    """Tuples, lists, (x, label), (dict, label), dicts with more keys: all of them are the same samples."""
    arrays = [np.random.default_rng(i).standard_normal((1, 3, 16, 16)).astype(np.float32) for i in range(3)]
    options = {"config": {"preset": "plain", "bench": False}}
    expected = detent.quantize(model, data=[{"x": a} for a in arrays], **options)
    forms = {
        "tuples": [(a,) for a in arrays],
        "lists": [[a] for a in arrays],
        "labels": [(a, i) for i, a in enumerate(arrays)],
        "dicts and labels": [({"x": a}, i) for i, a in enumerate(arrays)],
        "more keys": detent.data.columns([{"x": a, "label": 1} for a in arrays], ["x"]),
        "other names": detent.data.columns([{"pixels": a} for a in arrays], {"x": "pixels"}),
        "positions": detent.data.columns([(7, a) for a in arrays], {"x": 1}),
        "a generator": detent.data.columns(({"x": a, "label": 1} for a in arrays), ["x"]),
    }
    for name, data in forms.items():
        assert bytes(detent.quantize(model, data=data, **options)) == bytes(expected), name
    assert len(forms["more keys"]) == 3
    with pytest.raises(detent.BadInput, match=r"lacks one of \['y'\]; found: x"):
        detent.quantize(model, data=detent.data.columns([{"x": arrays[0]}], ["y"]), **options)

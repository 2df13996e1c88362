"""Layers whose amounts are drawn for each image: colours, blur, erasing, affine maps; and layers in layers."""
from support.mutants import Mutant

CC = "refurbish_tf/cc/image"
DISTORTIONS = "tests/cc/test_cc.py::test_cc[address_undefined-distortions_test]"
DRAWN = "tests/cc/test_cc.py::test_cc[address_undefined-drawn_distortions_test]"
COLORS, APPLY, AFFINE = "tests/augment/test_color_layers.py", "tests/augment/test_random_apply.py", "tests/augment/test_random_affine.py"
ERASING, TRIVIAL = "tests/augment/test_random_erasing.py", "tests/augment/test_trivial_augment.py"

MUTANTS = [
    Mutant("a hue is turned the other way", f"{CC}/distortion_kernels.h", "hue = 16 * hue + ((spread", "hue = 16 * hue - ((spread", DRAWN),
    Mutant("a turned hue is not rounded", f"{CC}/distortion_kernels.h", "(16 * most + 8 - std::clamp(", "(16 * most - std::clamp(", DRAWN),
    Mutant("the blue of a hue that vectors turn is that of another pixel", f"{CC}/vector_distortions.cc",
           "MovedUp(MovedUp(Packed(low.blue, high.blue)))", "MovedUp(Packed(low.blue, high.blue))",
           DISTORTIONS),
    Mutant("a hue is looked up in tables of values", f"{CC}/distortions.cc",
           "  if (form_ != Form::kTables || next.form_ == Form::kColor ||\n      next.form_ == Form::kHue) {",
           "  if (form_ != Form::kTables || next.form_ == Form::kColor) {", DISTORTIONS),
    Mutant("any factor is taken for one in whole steps", f"{CC}/prepared_distortion.cc", "  return steps == std::floor(steps);",
           "  return steps == steps;", DISTORTIONS),
    Mutant("a jitter has one order", f"{CC}/layers/color_jitter.cc", "number % (kNumSteps - i)", "number * 0",
           f"{COLORS}::test_are_as_their_reference"),
    Mutant("a jitter's amounts are in no steps", f"{CC}/layers/color_jitter.cc", "std::nearbyint(parameter * PreparedDistortion::kSteps)",
           "(parameter * PreparedDistortion::kSteps)", f"{COLORS}::test_are_as_their_reference"),
    Mutant("a blur does not reflect the image", f"{CC}/gaussian.cc", "std::abs(i + k) % period", "std::max<int64_t>(i + k, 0) % period",
           f"{COLORS}::TestRivals"),
    Mutant("a blur is narrower than its kernel", f"{CC}/layers/gaussian_blur.cc", "(kernel_ > 0 ? 5 : 3) * sigma", "sigma",
           f"{COLORS}::TestRivals"),
    Mutant("layers that are applied together draw the same", "refurbish_tf/augment/inner_layers.py", "pieces(layer.text, k)",
           "pieces(layer.text, 0)", f"{APPLY}::test_is_as_its_reference"),
    Mutant("layers that are not applied draw", f"{CC}/layers/random_apply.cc", "if (!ChangesNothing(draws)) chain_.Draw", "chain_.Draw",
           f"{APPLY}::test_is_as_its_reference"),
    Mutant("layers in a layer in a layer are not read", "refurbish_tf/augment/inner_layers.py", '.replace(",~", ",~~")', "",
           f"{APPLY}::test_is_as_its_reference"),
    Mutant("layers that resize are applied at random", f"{CC}/layer_chain.cc", "(keeps_size && (!(made->size == image.size) || made->size_is_new))",
           "false", f"{APPLY}::test_what_it_refuses"),
    Mutant("an erased rectangle is as wide as it should be high", f"{CC}/layers/random_erasing.cc",
           "Ratio::kHeightToWidth", "Ratio::kWidthToHeight", f"{ERASING}::test_is_as_its_reference"),
    Mutant("a rectangle as large as the image is erased", f"{CC}/layers/random_erasing.cc", "height < size.height", "height <= size.height",
           f"{ERASING}::test_is_as_its_reference"),
    Mutant("boxes do not follow a translation of an affine map", f"{CC}/targets/places.cc",
           "x - static_cast<double>(move.x)", "x", f"{AFFINE}::test_what_follows_goes_with_the_image"),
    Mutant("an affine map shears the other way", f"{CC}/prepared_distortion.cc", "(turned.sine + cosine * tangent)",
           "(turned.sine - cosine * tangent)", f"{AFFINE}::test_is_torchvisions_and_pillows"),
    Mutant("rows of a turned image go down as they go to the right", f"{CC}/distortions.cc", "plan_.yy = Fixed(prepared.yy);",
           "plan_.yy = Fixed(prepared.xx);", DRAWN),
    Mutant("a translation in pixels is one in parts", f"{CC}/prepared_distortion.cc",
           "    case Distortion::kMoveX:\n      return {0, HalfToEven(parameter)};",
           "    case Distortion::kMoveX:\n      return {0, HalfToEven(parameter * width)};",
           DISTORTIONS),
    Mutant("a threshold between two values inverts the lower one", "refurbish_tf/augment/trivial_augment.py",
           "-(-255 * (_BINS - 1 - k) // (_BINS - 1))", "255 * (_BINS - 1 - k) // (_BINS - 1)", f"{TRIVIAL}::test_the_space_is_torchvisions"),
]

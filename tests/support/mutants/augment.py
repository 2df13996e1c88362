"""Augmentations and the images they draw."""
from support.mutants import Mutant

IMAGE = "tests/test_cc.py::test_cc[address_undefined-image_test]"

MUTANTS = [
    Mutant("crops that never reach the last row", "refurbish_tf/cc/image/resize.cc",
           "Unit(place[0]) * (image.height - box.height + 1)", "Unit(place[0]) * (image.height - box.height)",
           "tests/test_decoding.py::test_windows_are_those_of_the_reference"),
    Mutant("the part of a planned image is the first one", "refurbish_tf/cc/image/plan.cc", "  rows.Cut(y, height);",
           "  rows.Cut(0, height);", "tests/test_final_layers.py::TestPixels::test_of_a_row_are_those_of_its_parts"),
    Mutant("all layers have the same seed", "refurbish_tf/augment/composition.py",
           "image = layers[step](image, seed=seeds[step])", "image = layers[step](image, seed=seeds[positions[0]])",
           "tests/test_augment_compose.py::TestCompose::test_every_layer_has_a_seed_of_its_own"),
    Mutant("a place of a crop that never comes", "refurbish_tf/cc/image/draws.cc",
           "        draws[1] = Below(own, 1, 2 * layer.padding + 1);", "        draws[1] = Below(own, 1, 2 * layer.padding);",
           "tests/test_final_layers.py::TestDraws::test_equal_the_reference"),
    Mutant("images of a batch draw the same", "refurbish_tf/cc/kernels/image/image_ops.cc",
           "Draw(run, seed.SeedAt(image), draws);", "Draw(run, seed.SeedAt(0), draws);",
           "tests/test_augment_batch.py::TestRandomCropAndFlipBatch::test_is_what_compose_makes_of_each_image"),
    Mutant("a crop ignores the flip before it", "refurbish_tf/cc/image/plan.cc",
           "    only_.from += only_.step * (begin + distance - before_);", "    only_.from += begin + distance - before_;", IMAGE),
    Mutant("vectors of three channels mirror a pixel less", "refurbish_tf/cc/image/vector_kernels.cc",
           "  uint8_t* const end = to + 3 * (pixels - 5);", "  uint8_t* const end = to + 3 * (pixels - 6);", IMAGE),
    Mutant("a draw beyond the padding is taken", "refurbish_tf/cc/image/layer.cc",
           "      if (draws[i] < 0 || draws[i] > highest) {", "      if (draws[i] < 0) {", IMAGE),
    Mutant("each layer of a final augmentation is a pair of ops", "refurbish_tf/augment/composition.py",
           "    if run and (not isinstance(layer, FinalLayer)", "    if run and (isinstance(layer, FinalLayer)",
           "tests/test_final_layers.py::TestComposition::test_is_one_op"),
    Mutant("what describes a layer is longer than TensorFlow's cache of kernels can tell apart",
           "refurbish_tf/augment/final_layers.py",
           'return re.split(" |(?=,)", text)', "return [text]",
           "tests/test_final_layers.py::TestComposition::test_eager_calls_tell_layers_apart_that_differ_little"),
    Mutant("a final augmentation's layers all have the seed of the first", "refurbish_tf/augment/composition.py",
           "      run.append((layer, position))", "      run.append((layer, 0))",
           "tests/test_final_layers.py::TestPixels::test_of_layers_in_a_row"),
    Mutant("weights of a resize do not add up to one", "refurbish_tf/cc/image/resize.cc",
           "static_cast<int16_t>(until - given);", "static_cast<int16_t>(weight(place) / total * (1 << kWeightBits));", IMAGE),
]

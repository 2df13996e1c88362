"""Layers that move pixels: crops, padding, quarter turns, rotation, perspective."""
from support.mutants import Mutant

CC = "refurbish_tf/cc/image"
GEOMETRY = "tests/augment/test_geometry_layers.py"
WALKS = "tests/cc/test_cc.py::test_cc[address_undefined-geometry_test]"
TARGETS = "tests/cc/test_cc.py::test_cc[address_undefined-targets_test]"

MUTANTS = [
    Mutant("a centre crop rounds half of an odd number down", f"{CC}/layers/center_crop.cc", "return half + ((side - made) % 2 & half % 2);",
           "return half;", f"{GEOMETRY}::test_center_crop_is_torchvisions"),
    Mutant("a centre crop puts more of the missing pixels first", f"{CC}/layers/center_crop.cc", "return -((made - side) / 2);",
           "return -((made - side + 1) / 2);", f"{GEOMETRY}::test_center_crop_is_torchvisions"),
    Mutant("the first pixels are repeated after the last", f"{CC}/plan.cc", "AppendRepeated(old, size_ - 1, behind);",
           "AppendRepeated(old, 0, behind);", WALKS),
    Mutant("a symmetric border leaves out the outermost pixels", f"{CC}/plan.cc", "border == Border::kReflect ? outermost : 0", "1", WALKS),
    Mutant("an edge of empty pixels is repeated as the last pixel", f"{CC}/walk.cc",
           "if ((strip.cutouts & cutouts) != 0) from = Strip::kNowhere;",
           "if ((strip.cutouts & cutouts) != 0 && strip.step != 0) from = Strip::kNowhere;", WALKS),
    Mutant("a padding that mirrors more than there is", f"{CC}/layers/pad.cc", "? most + 1\n", "? most\n", WALKS),
    Mutant("a padding keeps an unknown size", f"{CC}/layers/pad.cc", "    made.size_is_new |= left_ + top_ + right_ + bottom_ > 0;\n", "",
           f"{GEOMETRY}::TestRefuses::test_random_apply_of_layers_that_change_the_size"),
    Mutant("a transposition keeps an unknown size", f"{CC}/layers/random_transpose.cc", "    image.size_is_new = true;\n", "",
           f"{GEOMETRY}::TestRefuses::test_random_apply_of_layers_that_change_the_size"),
    Mutant("quarter turns are clockwise", f"{CC}/layers/random_rotate90.cc", "turns == 1 || turns == 2", "turns == 3 || turns == 2",
           f"{GEOMETRY}::test_quarter_turns_are_albumentations"),
    Mutant("any image is turned by a quarter", f"{CC}/layers/random_rotate90.cc", "    RTF_RETURN_IF_ERROR(CheckIsSquare(image));\n", "", WALKS),
    Mutant("a mask is transposed from its end", f"{CC}/targets/mask.cc", "points.push_back(At(y, x));\n  }\n  GoOnFrom(std::move(points)",
           "points.push_back(At(now.height - 1 - y, x));\n  }\n  GoOnFrom(std::move(points)", WALKS),
    Mutant("boxes do not follow a transposition", f"{CC}/targets/target_rows.cc", "  to.yy = to.xx = 0;\n  to.yx = to.xy = 1;\n", "", TARGETS),
    Mutant("an image is rotated clockwise", f"{CC}/layers/random_rotation.cc", "Between(degrees_, draws[0])", "-Between(degrees_, draws[0])",
           f"{GEOMETRY}::test_is_torchvisions_and_pillows"),
    Mutant("a perspective is one of rows for columns", f"{CC}/prepared_distortion.cc", "static_cast<double>(whole) / (by_h * area)",
           "static_cast<double>(whole) / (by_g * area)", f"{GEOMETRY}::TestPerspective::test_of_any_draws"),
    Mutant("a perspective is of the corners of pixels", f"{CC}/distortions.cc", " + (plan_.xx + plan_.xy) / 2;", ";",
           f"{GEOMETRY}::TestPerspective::test_of_any_draws"),
    Mutant("boxes do not follow a perspective", f"{CC}/targets/places.cc", "      source.wx = distortion.wx;\n", "",
           f"{GEOMETRY}::TestPerspective::test_of_any_draws"),
    Mutant("places are projected back the other way", f"{CC}/targets/places.cc", "made.wy = xy * wx - xx * wy;", "made.wy = xx * wy - xy * wx;",
           f"{GEOMETRY}::TestPerspective::test_of_any_draws"),
    Mutant("a point behind the viewer is seen", f"{CC}/targets/places.h", "if (!(depth > 0)) return {kFar, kFar};", "",
           f"{GEOMETRY}::TestPerspective::test_of_any_draws"),
    Mutant("corners move less far than said", f"{CC}/layers/random_perspective.cc", "(static_cast<int64_t>(most) + 1) >> 31",
           "static_cast<int64_t>(most) >> 31", f"{GEOMETRY}::TestPerspective::test_of_any_draws"),
]

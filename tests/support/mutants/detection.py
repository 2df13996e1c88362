"""Layers whose images get sizes that are drawn, that look at boxes, and that choose and order others."""
from support.mutants import Mutant

CC, LAYERS = "refurbish_tf/cc/image", "refurbish_tf/cc/image/layers"
DETECTION, CHOICE = "tests/augment/test_detection_layers.py", "tests/augment/test_random_choice.py"
WALKS = "tests/cc/test_cc.py::test_cc[address_undefined-geometry_test]"
TARGETS = "tests/cc/test_cc.py::test_cc[address_undefined-targets_test]"

MUTANTS = [
    Mutant("a zoomed image lies at the left as at the top", f"{LAYERS}/random_zoom_out.cc", "UnitOf(draws[3])", "UnitOf(draws[2])",
           f"{DETECTION}::test_zoom_out_is_torchvisions"),
    Mutant("an image of drawn size keeps its static one", f"{LAYERS}/random_zoom_out.cc", "return image.OfDrawnSize();", "return image;",
           f"{DETECTION}::TestSizes::test_static_shapes"),
    Mutant("a random size reaches its end", f"{LAYERS}/random_resize.cc", "seed.Below(0, number_)", "seed.Below(0, number_ + 1)",
           f"{DETECTION}::TestDraws::test_are_uniform"),
    Mutant("the option of the whole image is one of an overlap", f"{LAYERS}/random_iou_crop.cc", "if (least >= 1) break;",
           "if (least > 1) break;", f"{DETECTION}::test_iou_crop_is_torchvisions"),
    Mutant("a crop has any ratio", f"{LAYERS}/random_iou_crop.cc", "if (!(ratio >= ratio_[0] && ratio <= ratio_[1])) continue;",
           "if (!(ratio >= 0)) continue;", f"{DETECTION}::test_iou_crop_is_torchvisions"),
    Mutant("a crop overlaps any box", f"{LAYERS}/random_iou_crop.cc", "edges.HasMiddleOf(box) && ", "",
           f"{DETECTION}::test_iou_crop_is_torchvisions"),
    Mutant("boxes that a crop gives up are clipped", f"{LAYERS}/random_iou_crop.cc", "    canvas->KeepWithin(part);\n", "",
           f"{DETECTION}::TestIouCrop::test_crops_are_what_was_asked_for"),
    Mutant("a layer looks at boxes as they were given", f"{CC}/layer_chain.cc", "    link.layer->DrawFrom(boxes, draws + link.first_draw);\n",
           "    if (link.layer->looks_at_boxes()) link.layer->DrawFrom(boxes, draws + link.first_draw);\n", TARGETS),
    Mutant("a crop by boxes needs none", "refurbish_tf/augment/native_layers.py",
           "if looking and not any(kind in BOXES for _, kind, _ in targets):", "if False:", f"{DETECTION}::TestIouCrop::test_needs_boxes"),
    Mutant("the first image says the size of a batch", "refurbish_tf/cc/kernels/image_layers.cc", "made.size_is_drawn && i < number",
           "false && i < number", f"{DETECTION}::TestSizes::test_a_batch_needs_one_size"),
    Mutant("a drawn size is not checked by the next layer", f"{CC}/layer.cc", "  made.size = none.size();\n", "", WALKS),
    Mutant("a choice ends at its probability", f"{LAYERS}/random_choice.cc", "std::upper_bound", "std::lower_bound",
           f"{CHOICE}::test_a_choice_ends_before_the_next"),
    Mutant("choices of two sizes have that of the first", f"{LAYERS}/random_choice.cc",
           "      if (!(made.size == all.size)) all.size = {kUnknown, kUnknown};\n", "", f"{CHOICE}::test_static_sizes"),
    Mutant("what was not chosen looks at no boxes", f"{LAYERS}/random_choice.cc", "ChosenBy(draws).DrawFrom(boxes, draws + 1);",
           "ChosenBy(draws).Apply(draws + 1, boxes);", f"{CHOICE}::test_boxes_are_looked_at_if_that_is_chosen"),
    Mutant("an order is the first one", f"{LAYERS}/random_order.cc", "i < number_ - 1 ? draws[i] : 0", "0",
           f"{CHOICE}::test_order_is_torchvisions"),
    Mutant("draws of an order may be any", f"{LAYERS}/random_order.cc", "if (i < number_ - 1) return number_ - i;",
           "if (i < number_ - 1) return number_;", f"{CHOICE}::test_draws_of_others_are_refused"),
    Mutant("choices have equal seeds", "refurbish_tf/augment/inner_layers.py", "text_of(chain, sum(map(len, chains[:k])))", "text_of(chain)",
           f"{CHOICE}::test_is_as_its_reference"),
    Mutant("an image between layers may have any number of bytes", f"{CC}/layer_chain.cc", "    if (status.ok()) status = Check(*made);\n", "",
           f"{DETECTION}::test_an_image_between_layers_is_not_larger_than_can_be_counted"),
]

"""Warnings, what is described, and the shuffle buffer of a stream."""
from support.mutants import Mutant

SOURCE = "refurbish_tf/cc/kernels/refurbish/source_reader.cc"
SOURCES = "tests/refurbish/test_dataset_sources.py::"
MISTAKES = "tests/internal/test_mistakes_in_sources.py::"

MUTANTS = [
    Mutant("a prefetch hides the batches", "refurbish_tf/_internal/mistakes.py",
           '    "_PrefetchDataset", ', '    ', MISTAKES + "test_batched_source"),
    Mutant("batches of one are warned of", "refurbish_tf/_internal/mistakes.py",
           "if _has_batches_of_one(source) else", "if False else", MISTAKES + "test_what_looks_like_a_batched_source"),
    Mutant("the warning has a line of TensorFlow's", "refurbish_tf/_internal/mistakes.py",
           '("refurbish_tf", "tensorflow", "keras")', '("refurbish_tf",)', MISTAKES + "test_the_line_is_that_of_the_user"),
    Mutant("what is beside the stage is described as after it", "refurbish_tf/describe.py",
           "    if behind.isdisjoint(map(id, each._inputs())):", "    if each is stage:",
           "tests/refurbish/test_stats.py::test_description_of_what_is_behind"),
    Mutant("a stream is not shuffled by default", "refurbish_tf/cc/kernels/refurbish/source_reader.h",
           "    return {1000, 256'000'000};", "    return {1, 256'000'000};", SOURCES + "test_shuffle_buffer_size"),
    Mutant("a shuffle buffer holds any number of bytes", SOURCE,
           "         buffer_bytes_ < shuffle_buffer_.bytes &&\n", "",
           SOURCES + "test_shuffle_buffer_of_large_elements"),
    Mutant("what has left a shuffle buffer is counted on", SOURCE,
           "  buffer_bytes_ -= next.bytes;\n", "", SOURCES + "test_shuffle_buffer_of_large_elements"),
    Mutant("a size that is given is bounded, too", "refurbish_tf/cc/kernels/refurbish/source_reader.h",
           "return {elements, std::numeric_limits<int64_t>::max()};", "return {elements, 256'000'000};",
           SOURCES + "test_shuffle_buffer_of_large_elements"),
    Mutant("an error drops what was read before it", SOURCE,
           "  index_known_ = next.index_known;\n", "  index_known_ = position_known_;\n",
           SOURCES + "test_what_was_in_the_shuffle_buffer_before_an_error_is_kept"),
    Mutant("a source that has grown loses what was read of it", SOURCE,
           "    if (!failed_.ok()) break;\n", "    if (!failed_.ok()) return failed_;\n",
           SOURCES + "test_a_source_that_has_grown_while_samples_are_removed"),
    Mutant("a zip of stages with one seed is warned of", "refurbish_tf/_internal/shared_seeds.py",
           'inputs[:1] if type(each).__name__ == "_ZipDataset" else inputs', "inputs",
           "tests/internal/test_shared_seeds.py::test_what_is_meant_is_silent"),
    Mutant("stages of one source are warned of", "refurbish_tf/_internal/shared_seeds.py", "{id(_source(stage)): stage", "{id(stage): stage",
           "tests/internal/test_shared_seeds.py::test_what_is_meant_is_silent"),
    Mutant("a class without images has a label", "refurbish_tf/sources/class_folders.py", "given is None and any(found) and all(",
           "given and any(found) and all(", "tests/sources/test_image_folder.py::test_a_class_without_images_is_an_error")]

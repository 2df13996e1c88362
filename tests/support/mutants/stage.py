"""What a stage holds, what it says at an epoch's end, and what it takes for granted of its source and of graphs."""
from support.mutants import Mutant

ITERATOR = "refurbish_tf/cc/kernels/refurbish/refurbish_iterator.cc"
WORK = "refurbish_tf/cc/kernels/refurbish/sample_work.cc"
SAMPLES = "refurbish_tf/cc/store/samples/sample_store.cc"
VIEW = "tests/store/test_cache_store_of_a_stage.py::test_a_view_is_not_kept_with_what_it_is_a_view_of"

MUTANTS = [
    Mutant("Python gets the memory of the store", "refurbish_tf/cc/kernels/inline_function.cc", "  if (calls_python_) Copy",
           "  if (false) Copy", "tests/refurbish/test_dataset.py::test_python_may_write_into_its_argument"),
    Mutant("a view is kept with what it is a view of", SAMPLES, "root_buffer()->size() > bytes;", "root_buffer()->size() < bytes;",
           f"{VIEW}[slice]"),
    Mutant("an array of numpy's is kept as it is", SAMPLES, "  return !buffer->OwnsMemory() ||\n", "  return\n",
           "tests/store/test_cache_store_of_a_stage.py::test_a_view_is_not_kept_with_what_it_is_a_view_of[slice in numpy]"),
    Mutant("a ragged component is kept with what it is a view of", SAMPLES, "        CopyIf(is_to_copy, ragged->mutable_values());\n", "",
           f"{VIEW}[ragged]"),
    Mutant("a result holds what it is a view of", WORK, "  if (rows_ == nullptr) OwnBuffers(&piece->tensors);\n", "", f"{VIEW}[slice]"),
    Mutant("a sample that is put is kept with what it is a view of", "refurbish_tf/cc/store/samples/memory_samples.h", "    OwnBuffers(&sample);\n", "    ;\n",
           "tests/store/test_cache_store_of_a_stage.py::test_a_view_that_is_put_is_not_kept_with_what_it_is_a_view_of"),
    Mutant("a seed that a function returned is overwritten", WORK, "!tensor.RefCountIsOne()",
           "tensor.dtype() != tensorflow::DT_INT32",
           "tests/refurbish/test_dataset.py::test_seeds_that_functions_return_stay_as_they_are"),
    Mutant("the error of an epoch's end is dropped with its iterator", ITERATOR,
           "    dataset()->stage_->NoteEndError(end_status_);\n", "",
           "tests/refurbish/test_dataset_sources.py::test_a_source_that_has_grown_under_who_never_asks_for_the_end"),
    Mutant("the error of an epoch's end comes again and again", "refurbish_tf/cc/refurbish/stage.cc",
           "      return std::exchange(end_error_, absl::OkStatus());", "      return end_error_;",
           "tests/refurbish/test_dataset_sources.py::test_a_source_that_has_grown_under_who_never_asks_for_the_end"),
    Mutant("a graph for others has any function", "refurbish_tf/cc/kernels/inline_function.cc",
           "  TF_RETURN_IF_ERROR(\n      ctx->HandleCheckExternalStateStatus(as_traced_->CheckExternalState()));\n", "",
           "tests/refurbish/test_dataset_graphs.py::test_a_graph_for_others_has_no_function_that_they_lack"),
    Mutant("what is repeated is asked for by index", "refurbish_tf/cc/kernels/op_lists.cc",
           '{kCounts, "Assert', '{kByIndex | kCounts, "Assert',
           "tests/refurbish/test_dataset_sources.py::test_sources"),
]

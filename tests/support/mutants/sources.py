"""What a stage reads: by index and as a stream."""
from support.mutants import Mutant

ITERATOR = "refurbish_tf/cc/kernels/refurbish/refurbish_iterator.cc"
WORK = "refurbish_tf/cc/kernels/refurbish/sample_work.cc"
SOURCE = "refurbish_tf/cc/kernels/refurbish/source_reader.cc"
DATA_SOURCE = "refurbish_tf/cc/kernels/sources/data_source_dataset_op.cc"
RECORDS = "refurbish_tf/cc/kernels/sources/tfrecord_dataset_op.cc"
OPEN_FILES = "refurbish_tf/cc/sources/open_files.cc"
INDEX = "tests/test_cc.py::test_cc[address_undefined-record_index_test]"

MUTANTS = [
    Mutant("batches of a Python source are large at once", DATA_SOURCE,
           "next_batch_ = std::min(2 * next_batch_, dataset()->batch_reads_);", "next_batch_ = dataset()->batch_reads_;",
           "tests/test_data_source.py::test_batches_begin_small_and_grow_to_batch_reads"),
    Mutant("who asks ahead waits", DATA_SOURCE, "    const AskingAhead does_not_wait;\n", "",
           "tests/test_data_source.py::test_samples_that_fill_what_may_be_taken_ahead"),
    Mutant("what was read ahead counts as handed out", DATA_SOURCE, "    position_ = next.position + 1;",
           "    position_ = wanted_.back().position + 1;", "tests/test_data_source.py::test_restored_at_every_step"),
    Mutant("elements share memory with their source", "refurbish_tf/sources/data_source.py",
           '  return np.array(array, array.dtype.newbyteorder("="), order="C")', "  return np.ascontiguousarray(array)",
           "tests/test_data_source_elements.py::test_what_was_read_is_nobody_elses"),
    Mutant("a Python source is kept for ever", "refurbish_tf/sources/data_source.py", "    if not tf.executing_eagerly():",
           "    if True:", "tests/test_data_source.py::test_the_source_goes_with_its_dataset"),
    Mutant("a file system that does not answer raises its own error", "refurbish_tf/sources/image_folder.py",
           "  except (OSError, UnicodeEncodeError, tf.errors.OpError) as error:", "  except (OSError, UnicodeEncodeError) as error:",
           "tests/test_image_folder.py::test_a_remote_file_system_that_does_not_answer"),
    Mutant("a split that is not shuffled", "refurbish_tf/sources/image_folder.py", "  if seed is not None:\n    places",
           "  if seed is None:\n    places", "tests/test_image_folder.py::test_files_are_those_of_keras_in_the_same_order"),
    Mutant("a class whose files are all left out is taken for an empty one", "refurbish_tf/sources/image_folder.py",
           "    if not images and not all(", "    if not images and not any(",
           "tests/test_image_folder.py::test_a_class_whose_files_are_all_left_out_is_an_error"),
    Mutant("what the last class alone leaves out is told", "refurbish_tf/sources/image_folder.py",
           "[name for each in left_out for name in each]", "[name for name in left_out[-1]]",
           "tests/test_image_folder.py::test_what_is_left_out_is_counted_by_extension"),
    Mutant("the input is not read to its end", ITERATOR,
           "  if (last) end_status_ = End();", "  if (last) ended_ = true;",
           "tests/test_dataset_sources.py::test_a_cached_stream_is_read_to_its_end"),
    Mutant("a source that has grown is not noticed", SOURCE,
           '      if (failed_.ok() && !end) failed_ = OtherLength("more than");\n', "",
           "tests/test_dataset_sources.py::test_a_source_whose_length_changes"),
    Mutant("a source that is shuffled anew in each epoch is taken", "refurbish_tf/cc/kernels/source_checks/check_source.cc",
           'absl::StartsWith(op, "ShuffleDataset") ||', 'absl::StartsWith(op, "ShuffleDatasets") ||',
           "tests/test_dataset_sources.py::test_bad_sources"),
    Mutant("an error names another sample", "refurbish_tf/cc/stage/epoch_decide.cc",
           "    place.index = index;\n    requests_", "    place.index = index / 2;\n    requests_",
           "tests/test_dataset_errors.py::test_one_sample_fails"),
    Mutant("what a stream yields after an error is kept", SOURCE,
           "        position_known_ = false;\n", "", "tests/test_workers.py::test_after_an_error_of_a_stream_nothing_is_kept"),
    Mutant("a sample of another shape is taken", WORK,
           "  TF_RETURN_IF_ERROR(CheckShapes(*piece));\n", "",
           "tests/test_dataset_errors.py::test_partial_fn_changes_its_output_structure"),
    Mutant("a decorator's word is taken for its parameters", "refurbish_tf/_internal/tracing.py",
           "      signature = inspect.signature(function, follow_wrapped=False)", "      signature = inspect.signature(function)",
           "tests/test_dataset_errors.py::test_decorated_functions"),
    Mutant("tfrecord: a record is read without its checksum", OPEN_FILES,
           "  if (Load<uint32_t>(footer) != MaskedCrc(record, length)) {", "  if (false) {", INDEX),
    Mutant("tfrecord: a file that has changed goes on being read", OPEN_FILES,
           "  RTF_RETURN_IF_ERROR(files->CheckUnchanged(file, open.get(), since));",
           "  (void)files->CheckUnchanged(file, open.get(), since);", INDEX),
    Mutant("tfrecord: an error names a missing file twice", "refurbish_tf/cc/sources/record_index.cc",
           "absl::StrContains(status.message(), path)", "path.empty()", "tests/test_tfrecord.py::test_bad_input"),
    Mutant("tfrecord: files are never closed", OPEN_FILES, "  while (open_.size() > most_) {", "  while (open_.empty()) {", INDEX),
    Mutant("tfrecord: an index that does not end with its file is taken", "refurbish_tf/cc/sources/file_index.cc",
           "  if (index.end_ != identity.size) return std::nullopt;", "  if (index.end_ == 1) return std::nullopt;", INDEX),
    Mutant("tfrecord: what a shard leaves out is read", RECORDS, "    plan_step_ = regular ? step : 1;", "    plan_step_ = 1;",
           "tests/test_tfrecord.py::test_what_is_not_asked_for_is_not_read"),
    Mutant("tfrecord: a restored iterator by a mapper begins anew", RECORDS, "    num_requests_ = num_requests;\n  ", "  ",
           "tests/test_tfrecord.py::TfrecordCheckpointTest"),
    Mutant("a rewritten source keeps the random access that it has lost", "refurbish_tf/cc/stage/stage.cc",
           """  options_.random_access &=
      options.random_access || options.num_samples == kUnknownSamples;
""", "", "tests/test_dataset_sources.py::test_sources"),
]

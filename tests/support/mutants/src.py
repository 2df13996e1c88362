"""What is said of files and their names, and what a message promises."""
from support.mutants import Mutant

INDEX = "refurbish_tf/cc/sources/record_index.cc"
INDEX_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-record_index_test]"
PRINTABLE_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-printable_test]"

MUTANTS = [
    Mutant("errors of records that no text can be made of", "refurbish_tf/cc/kernels/sources/tfrecord_dataset_op.cc", "return Printable(status);",
           "return status;", "tests/sources/test_tfrecord.py::test_names_that_are_no_text_arrive_in_errors"),
    Mutant("errors of indices that no text can be made of", "refurbish_tf/cc/kernels/sources/tfrecord_dataset_op.cc",
           "status = Printable(made.status());", "status = made.status();",
           "tests/sources/test_tfrecord.py::test_names_that_are_no_text_arrive_in_errors"),
    Mutant("errors of sources that no text can be made of", "refurbish_tf/cc/kernels/refurbish/sample_work.cc",
           "  return Printable(absl::Status(\n      status.code(),", "  return (absl::Status(\n      status.code(),",
           "tests/sources/test_image_folder.py::test_names_that_are_no_text"),
    Mutant("errors of stores that no text can be made of", "refurbish_tf/cc/store/samples/disk_samples.cc",
           "Printable(disk.status().message())", "disk.status().message()",
           "tests/store/test_disk_store_bad_input.py::test_directory_of_others_is_left_untouched"),
    Mutant("surrogates pass for text", "refurbish_tf/cc/base/printable.cc", "byte(1) > 0x9f", "false", PRINTABLE_TEST),
    Mutant("a file that vanishes before its index is made", INDEX, """  if (absl::IsNotFound(identity.status())) return ChangedMeanwhile(file->path);
  if (!identity.ok()) return identity.status();
  file->identity = *identity;""", """  if (!identity.ok()) return identity.status();
  file->identity = *identity;""", INDEX_TEST),
    Mutant("a file that vanishes while its index is made", INDEX, """  if (absl::IsNotFound(identity.status())) return ChangedMeanwhile(file->path);
  if (!identity.ok()) return identity.status();
  if (*identity""", """  if (!identity.ok()) return identity.status();
  if (*identity""", INDEX_TEST),
    Mutant("a planted link is followed where the index is kept", "refurbish_tf/cc/sources/file_access.cc",
           "(follow ? 0 : O_NOFOLLOW)", "0", INDEX_TEST),
    Mutant("a planted link is not told of", INDEX, "is_beside && index_access->IsLink(directory)", "false",
           "tests/sources/test_tfrecord.py::test_a_planted_link_is_not_followed"),
    Mutant("a web server is taken for a file system", "refurbish_tf/_internal/checks.py", 'if scheme in ("http", "https"):',
           "if False:", "tests/sources/test_tfrecord.py::test_bad_input"),
    Mutant("a file system that TensorFlow has is refused", "refurbish_tf/_internal/checks.py",
           "if scheme is None or scheme in tf.io.gfile.get_registered_schemes():", "if scheme is None:",
           "tests/sources/test_file_systems.py::test_file_systems_of_tensorflow_are_taken"),
    Mutant("a backup for a bucket goes to this machine", "refurbish_tf/keras/restore.py",
           "if checks.scheme_of(backup_dir) is not None:", "if False:",
           "tests/sources/test_file_systems.py::test_what_no_file_system_has_is_refused_by_all_that_open_files"),
    Mutant("a relative path is one of wherever the process works", "refurbish_tf/_internal/checks.py",
           'return path if scheme_of(path) or os.path.isabs(path) else os.path.join(os.getcwdb(), path)', "return path",
           "tests/sources/test_tfrecord.py::test_a_relative_path_is_that_of_where_it_was_given"),
    Mutant("a file is told of an element at another place", "refurbish_tf/cc/kernels/source_checks/file_of.cc", '== "TakeDataset"',
           '!= "TensorSliceDataset"', "tests/sources/test_image_folder.py::test_the_error_of_a_damaged_photograph_names_its_file"),
    Mutant("a text is taken for the name of a file", "refurbish_tf/cc/kernels/source_checks/file_of.cc",
           "tensorflow::Env::Default()->FileExists(file).ok()", "true",
           "tests/sources/test_image_folder.py::test_the_error_of_a_damaged_photograph_names_its_file"),
    Mutant("list_files is told of where there is none", "refurbish_tf/cc/kernels/source_checks/check_source.cc",
           "contents.file_lists.count(input.substr(0, input.find(':'))) > 0", "!contents.file_lists.empty()",
           "tests/internal/test_mistakes_in_sources.py::test_a_shuffle_of_records_is_not_told_of_list_files"),
]

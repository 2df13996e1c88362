"""Elements of a source that are kept by `rtf.sources.cached`."""
from support.mutants import Mutant

PLAN = "refurbish_tf/cc/kernels/sources/position_plan.cc"
KEPT = "refurbish_tf/cc/kernels/sources/cached_source.cc"
SETTINGS = "refurbish_tf/cc/cooperation/shared/shared_cooperation.cc"
OP = "refurbish_tf/cc/kernels/sources/cached_dataset_op.cc"
PYTHON = "refurbish_tf/sources/cached.py"
IN_MEMORY, ON_DISK = "tests/sources/test_cached.py::", "tests/sources/test_cached_store.py::"

MUTANTS = [
    Mutant("cached: the source reads ahead what is kept", PLAN, "    if (source_->Contains(index)) {", "    if (false) {", IN_MEMORY + "test_a_source_that_reads_ahead_reads_just_what_is_missing"),
    Mutant("cached: what has gone is taken for what is kept", OP, "if (plan_->Load(&next)) {", "if (plan_->Load(&next), true) {",
           IN_MEMORY + "test_an_element_that_goes_while_the_source_reads_ahead_is_read_alone"),
    Mutant("cached: elements that are passed over are read", OP, "if (plan_->PassOver() &&", "if ((plan_->PassOver(), true) &&",
           IN_MEMORY + "test_elements_that_are_passed_over_are_not_read"),
    Mutant("cached: what was asked for and is passed over stays in the source", PLAN, "  return decision == Decision::kToRead;",
           "  return false;", IN_MEMORY + "test_skip_behind_a_source_that_reads_ahead"),
    Mutant("cached: a restored iterator begins again", OP, "    first_ = position;\n", "    first_ = 0;\n",
           IN_MEMORY + "test_restored_at_every_step"),
    Mutant("cached: an input that has failed is read further", OP, "fewer than\");\n    input_failed_ = !status.ok();\n",
           "fewer than\");\n", "tests/sources/test_source_fails.py::test_an_error_costs_the_element_that_it_came_in"),
    Mutant("cached: a store on disk is not read ahead", PLAN, "  if (read_ahead_ != nullptr) ReadAhead();\n", "",
           ON_DISK + "test_the_store_is_read_ahead"),
    Mutant("cached: what is missing is decided ahead", PLAN, "      asked = end_;\n      if (wanted", "      asked = end_;\n      Decide(end_);\n      if (wanted",
           ON_DISK + "test_two_jobs_at_once_read_each_element_once"),
    Mutant("cached: single elements are not kept", OP, "    elements_->Put(index, /*sum=*/0, element);\n", "",
           IN_MEMORY + "test_single_elements"),
    Mutant("cached: a map and batch by index become a stream", PYTHON, "map_and_batch_fusion = False", "map_and_batch_fusion = True",
           IN_MEMORY + "test_the_same_samples_in_the_same_order_as_without"),
    Mutant("cached: a stream is taken", OP, "    if (stream == nullptr) return absl::OkStatus();", "    return absl::OkStatus();",
           IN_MEMORY + "test_refused_sources"),
    Mutant("cached: two share a store in memory", KEPT, "  RTF_RETURN_IF_ERROR(store->Reserve(id_, weak_from_this(), types));\n", "",
           IN_MEMORY + "test_a_store_in_memory_serves_one"),
    Mutant("cached: elements are put where samples are", PYTHON, "      store._check_holds(elements=True)\n", "",
           ON_DISK + "test_a_store_of_samples_is_refused_and_stays_as_it_is"),
    Mutant("cached: samples are put where elements are", "refurbish_tf/refurbish_op.py", "      kept._check_holds(elements=False)\n", "      pass\n",
           ON_DISK + "test_a_store_of_elements_is_refused_and_stays_as_it_is"),
    Mutant("cached: a shard's elements are taken for the whole", SETTINGS, "                             {kShardSetting, shard}};",
           '                             {kShardSetting, ""}};', ON_DISK + "test_another_source_is_refused"),
    Mutant("cached: elements on disk are not compared", OP, "        checks.checks()) {\n      OP_REQUIRES_OK",
           "        false) {\n      OP_REQUIRES_OK", ON_DISK + "test_another_source_is_refused"),
    Mutant("cached: an element that is read again is not compared", OP, "      sum = ElementSum(*element);\n      TF_RETURN_IF_ERROR(",
           "      sum = ElementSum(*element);\n      (void)(", ON_DISK + "test_a_file_that_changes_is_an_error"),
    Mutant("cached: other files of a folder are taken", PYTHON, "        _check_files(store, files)\n", "        pass\n",
           ON_DISK + "test_other_files_of_a_folder_are_refused"),
]

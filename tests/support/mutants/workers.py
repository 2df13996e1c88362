"""The workers of a stage."""
from support.mutants import Mutant

WORKERS_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-ordered_workers_test]"
WAITING = "tests/cc/test_cc.py::test_cc[address_undefined-ordered_workers_waiting_test]"
CANCEL = "tests/cc/test_cc.py::test_cc[address_undefined-ordered_workers_cancel_test]"
WORKERS = "refurbish_tf/cc/workers/ordered_workers.cc"

MUTANTS = [
    Mutant("a result out of order", WORKERS,
           "    return ring_.front()->state == State::kDone ? 0 : ring_.size();",
           "    if (ring_.front()->state == State::kDone) return 0;", WORKERS_TEST),
    Mutant("a lost wake-up", WORKERS, "settling_ || IsReady() || ring_.empty())) {", "settling_ || IsReady())) {",
           WORKERS_TEST),
    Mutant("a result is handed out after a cancellation", WORKERS,
           "  while (!cancelled_) {\n    if (TakeReady(piece))", "  while (!cancelled_ || IsReady()) {\n    if (TakeReady(piece))",
           CANCEL),
    Mutant("a claim after a cancellation", WORKERS,
           "    if (cancelled_ || !fetching_ || !MayClaim()) return true;", "    if (!fetching_ || !MayClaim()) return true;",
           CANCEL),
    Mutant("help while cancelled", WORKERS, "  if (cancelled_) return;\n", "", CANCEL),
    Mutant("there is as much room for large pieces as for small ones", WORKERS, "bytes < kSmallBytes ?", "bytes >= 0 ?",
           "tests/cc/test_cc.py::test_cc[address_undefined-ordered_workers_room_test]"),
    Mutant("a call too many", WORKERS, "threads_.size()) + consumer_helps_ >=", "threads_.size()) >=", WORKERS_TEST),
    Mutant("the consumer does long pieces", WORKERS, "    consumer_helps_ = false;\n", "", WAITING),
    Mutant("large results of many calls have no room", WORKERS, "std::max(options_.max_bytes,", "std::min(options_.max_bytes,",
           "tests/cc/test_cc.py::test_cc[address_undefined-ordered_workers_room_test]"),
    Mutant("all threads start at once", WORKERS, "  if (num_sleeping_ > 0 || num_starting_ > 0 ||\n",
           "  while (static_cast<int>(threads_.size()) + 1 < options_.max_calls) {\n    ++num_starting_;\n"
           "    threads_.push_back(start_thread_([this] { Loop(); }));\n  }\n"
           "  if (num_sleeping_ > 0 || num_starting_ > 0 ||\n", WORKERS_TEST),
    Mutant("a checkpoint does not wait for what is under way", WORKERS,
           "  while (!cancelled_ && !std::all_of(", "  while (cancelled_ && !std::all_of(", WORKERS_TEST),
    Mutant("work goes on while it is saved", "refurbish_tf/cc/workers/ordered_workers.h",
           "return !settling_ && !claims_ended_", "return !claims_ended_", WORKERS_TEST),
    Mutant("what is under way is not saved", "refurbish_tf/cc/kernels/element_iterator.h",
           "      for (const OrderedWorkers::Piece* piece : ready) {\n",
           "      for (const OrderedWorkers::Piece* piece : ready) {\n        if (results.size() == 1) break;\n",
           "tests/echo/test_augment_stage.py::test_what_is_under_way_is_saved"),
    Mutant("a thread is woken for each result", WORKERS,
           "HasRoom(options_.wake_part) && HasWork()", "HasRoom(1) && HasWork()", WAITING),
    Mutant("what may take long is claimed with others", WORKERS,
           "(piece == nullptr || work_->IsShort(*piece))", "(piece == nullptr || true)", WAITING),
]

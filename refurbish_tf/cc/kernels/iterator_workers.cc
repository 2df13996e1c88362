#include "refurbish_tf/cc/kernels/iterator_workers.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "refurbish_tf/cc/base/memory.h"
#include "tensorflow/core/framework/dataset_options.pb.h"
#include "tensorflow/core/util/determinism.h"

namespace refurbish_tf {
namespace {

// The limit of `num_parallel_calls`: each call may need a thread.
constexpr int64_t kMostCalls = 1024;

// How many results may be ready or in progress: `kPiecesPerCall` for each
// parallel call, but at least `kLeastPieces`.
constexpr size_t kLeastPieces = 16;
constexpr size_t kPiecesPerCall = 4;
// At most this many rows of a batch are claimed ahead: `batch_size` may be far
// larger than a source whose length is unknown.
constexpr int64_t kMostRowsAhead = 1 << 14;
// How many small results may be ready or in progress. With 16, a thread was
// woken for every eighth sample, which took 5 % of the CPU time at 32x32.
constexpr size_t kSmallPieces = 64;

// The large results of one iterator may take 1 / kPartOfMemory of memory. All
// iterators together may take as much again while they wait for slow samples,
// but at most `kMostSpareBytes`.
constexpr int64_t kPartOfMemory = 16;
constexpr int64_t kMostSpareBytes = 256 << 20;

int CoresOfAffinity() {
  cpu_set_t cores;
  // Asks for the main thread: other threads may be bound to fewer cores.
  if (sched_getaffinity(getpid(), sizeof(cores), &cores) == 0) {
    return CPU_COUNT(&cores);
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

const int cores_at_load = CoresOfAffinity();

// Microseconds of CPU time in `period`. False without a quota.
bool ReadQuota(const std::string& groups, double* quota, double* period) {
  // Without a quota, version 2 has "max", and version 1 has -1.
  return (std::ifstream(groups + "/cpu.max") >> *quota >> *period ||
          (std::ifstream(groups + "/cpu/cpu.cfs_quota_us") >> *quota &&
           std::ifstream(groups + "/cpu/cpu.cfs_period_us") >> *period)) &&
         *quota > 0 && *period > 0;
}

// How many CPU cores the process may use now: the cores of its affinity, within
// the quota of its container, rounded up. Both may change. Does I/O, which
// takes about 0.02 ms.
int ReadCores() {
  const int cores = CoresOfAffinity();
  double quota, period;
  if (!ReadQuota(SystemRoot() + "/sys/fs/cgroup", &quota, &period)) {
    return cores;
  }
  return std::clamp(static_cast<int>((quota + period - 1) / period), 1, cores);
}

// Whether a thread pool of this size has a thread for each core of the process,
// now or when this library was loaded. Otherwise somebody has chosen its size.
bool IsOfAllCores(int pool_size) {
  return pool_size == cores_at_load || pool_size == CoresOfAffinity();
}

bool InOrder(const std::string& deterministic, IteratorContext* ctx) {
  if (tensorflow::OpDeterminismRequired()) return true;
  if (deterministic != "default") return deterministic == "true";
  return ctx->options() == nullptr ||
         ctx->options()->optional_deterministic_case() !=
             tensorflow::data::Options::kDeterministic ||
         ctx->options()->deterministic();
}

}  // namespace

absl::Status CheckParallelCalls(int64_t value, absl::string_view name) {
  if (value >= kAutotuneCalls && value <= kMostCalls) return absl::OkStatus();
  return InvalidArgument(
      name, " must be tf.data.AUTOTUNE, None or a whole number from 1 to ",
      kMostCalls, ", got ", value, ".");
}

OrderedWorkers::Options WorkerOptions(
    IteratorContext* ctx, int64_t num_parallel_calls,
    const std::string& deterministic,
    const std::vector<const InlineFunction*>& functions) {
  const auto any = [&functions](auto is_so) {
    return std::any_of(functions.begin(), functions.end(), is_so);
  };
  OrderedWorkers::Options options;
  options.max_calls = num_parallel_calls;
  if (num_parallel_calls == kAutotuneCalls) {
    options.max_calls = std::max(1, ctx->runner_threadpool_size());
    if (IsOfAllCores(options.max_calls)) {
      options.calls_now = ReadCores;
      options.max_calls = ReadCores();
    }
  }
  options.in_order = InOrder(deterministic, ctx);
  // Stateful functions are deterministic only if one thread runs all calls.
  if (tensorflow::OpDeterminismRequired() &&
      any([](auto* function) { return function->is_stateful(); })) {
    options.max_calls = 0;
    options.calls_now = nullptr;
  }
  // The consumer does not help with Python, which runs one thread at a time.
  options.consumer_helps =
      !any([](auto* function) { return function->metadata().calls_python(); });
  options.max_pieces =
      std::max(kLeastPieces, kPiecesPerCall * options.max_calls);
  options.max_small_pieces = kSmallPieces;
  options.max_large_bytes = ReadMemory().limit / kPartOfMemory;
  options.max_bytes = std::min(options.max_bytes, options.max_large_bytes);
  return options;
}

SpareRoom* ProcessSpareRoom() {
  static SpareRoom* const room = new SpareRoom(
      std::min(kMostSpareBytes, ReadMemory().limit / kPartOfMemory));
  return room;
}

BatchRows::Options RowsOf(const Batches& batches, const DatasetBase* dataset) {
  BatchRows::Options rows;
  rows.batch_size = batches.size;
  rows.drop_remainder = batches.drop_remainder;
  rows.types = dataset->output_dtypes();
  for (PartialTensorShape shape : dataset->output_shapes()) {
    shape.RemoveDim(0);
    shape.AsTensorShape(&rows.shapes.emplace_back());
  }
  return rows;
}

std::unique_ptr<BatchRows> MakeRows(const Batches& batches,
                                    const DatasetBase* dataset,
                                    int64_t num_results, bool in_order,
                                    std::shared_ptr<BatchMemory> memory,
                                    OrderedWorkers::Options* options) {
  BatchRows::Options rows = RowsOf(batches, dataset);
  rows.in_order = in_order;
  int64_t row_bytes = 1;
  for (size_t i = 0; i < rows.types.size(); ++i) {
    row_bytes +=
        rows.shapes[i].num_elements() * tensorflow::DataTypeSize(rows.types[i]);
    // The bytes of such rows, for example strings, are unknown.
    if (!DataTypeCanUseMemcpy(rows.types[i])) options->spare = nullptr;
  }
  rows.most_rows = num_results >= 0 ? num_results
                   : in_order       ? options->max_large_bytes / row_bytes
                                    : rows.batch_size;
  rows.most_rows = std::max<int64_t>(1, rows.most_rows);
  const int64_t calls = std::max(1, options->max_calls);
  const int64_t large = std::min<int64_t>(options->max_large_bytes,
                                          kPiecesPerCall * calls * row_bytes);
  const int64_t pieces =
      std::max(options->max_pieces, options->max_small_pieces);
  options->max_pieces =
      std::min({rows.batch_size, rows.most_rows, kMostRowsAhead}) +
      std::clamp(std::max(options->max_bytes, large) / row_bytes, calls,
                 std::max(calls, pieces));
  options->max_small_pieces = 0;
  options->bytes_beside += row_bytes;
  return std::make_unique<BatchRows>(std::move(rows), std::move(memory));
}

IteratorWorkers::~IteratorWorkers() {
  Cancel();
  if (deregister_fn_) deregister_fn_();
  Stop();
  if (memory_ != nullptr) memory_->Close();
}

std::shared_ptr<BatchMemory> IteratorWorkers::MemoryOfBatches(
    const char* stage, IteratorContext* ctx) {
  if (memory_ == nullptr) {
    memory_ = std::make_shared<BatchMemory>(stage, ctx->allocator({}));
  }
  return memory_;
}

absl::Status IteratorWorkers::Initialize(IteratorContext* ctx) {
  return tensorflow::RegisterCancellationCallback(
      ctx->cancellation_manager(), [this] { Cancel(); }, &deregister_fn_);
}

void IteratorWorkers::Start(const OrderedWorkers::Options& options,
                            OrderedWorkers::Work* work, IteratorContext* ctx,
                            std::function<void()> on_cancel) {
  workers_ = std::make_unique<OrderedWorkers>(
      options, work, [ctx](std::function<void()> run) {
        return std::shared_ptr<Thread>(
            ctx->StartThread("refurbish_tf", std::move(run)));
      });
  absl::MutexLock lock(&mu_);
  cancel_ = [workers = workers_.get(), on_cancel = std::move(on_cancel)] {
    workers->Cancel();
    if (on_cancel) on_cancel();
  };
  if (cancelled_) cancel_();
}

void IteratorWorkers::Stop() {
  {
    absl::MutexLock lock(&mu_);
    cancel_ = nullptr;
  }
  workers_.reset();
}

void IteratorWorkers::Cancel() {
  cancellation_manager_.StartCancel();
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  if (cancel_) cancel_();
}

}  // namespace refurbish_tf

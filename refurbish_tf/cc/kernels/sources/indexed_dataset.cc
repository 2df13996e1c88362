// Read-ahead follows whatever determines the next element: the position and the
// step between the last two (`shard` always skips the same number), the splits
// of a tf.data service, or an index mapper. If there are workers, only they
// call the mapper: it may wait (`Epoch::Request`), and the consumer must not.
#include "refurbish_tf/cc/kernels/sources/indexed_dataset.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <iterator>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/iterator_workers.h"
#include "refurbish_tf/cc/refurbish/non_blocking_requests.h"
#include "refurbish_tf/cc/sources/open_files.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"
#include "tensorflow/core/data/split_utils.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kAutotuneReads = 16;

constexpr char kNumRequests[] = "num_requests";
constexpr char kPending[] = "pending";

constexpr int64_t kMaxRequests = int64_t{1} << 62;

// If at most this many elements that workers have begun to read are skipped,
// their results are dropped; after a longer `Skip` the workers are restarted.
constexpr int64_t kMostPassed = 16;

// About how many bytes a reader reads at once, if it reads several elements.
constexpr size_t kMostBytesAtOnce = 16 << 20;

// When looking for more elements to read at once, a reader passes over at most
// this many positions of other sources, as in `concatenate`.
constexpr int kMostPassedAhead = 16;

// Decides which element is next: sets its index, or an error. Returns false at
// the end, and if it would wait under `NonBlockingRequests`. Never called by
// two threads at once.
using NextIndex = std::function<bool(IndexedElement*)>;

// Every `step`-th index from `first` on. Never waits.
NextIndex IndicesInOrder(int64_t num_elements, int64_t first, int64_t step) {
  return [=, next = first](IndexedElement* element) mutable {
    if (next >= num_elements) return false;
    element->index = next;
    next += step;
    return true;
  };
}

// The indices that a mapper returns, from request `num_requests` on.
NextIndex RequestedIndices(int64_t num_elements, IndexMapperFn mapper,
                           int64_t num_requests) {
  return [=](IndexedElement* element) mutable {
    const bool ahead = NonBlockingRequests::OnThisThread();
    absl::StatusOr<size_t> index;
    int num_asked = 0;
    // NotFound: the position belongs to another source in `concatenate`.
    do {
      if (ahead && num_asked++ > kMostPassedAhead) return false;
      index = mapper(static_cast<size_t>(num_requests++));
    } while (absl::IsNotFound(index.status()));
    if (index.ok() && *index >= static_cast<size_t>(num_elements)) {
      index = OutOfRange("The end of the source.");
    }
    if (ahead && !index.ok()) {
      --num_requests;  // The next piece asks again, and may wait.
      return false;
    }
    element->num_requests = num_requests;
    element->status = index.status();
    if (index.ok()) element->index = static_cast<int64_t>(*index);
    return !absl::IsOutOfRange(index.status());
  };
}

// The indices of `pending`, then those that a tf.data service assigns.
NextIndex SplitIndices(int64_t num_elements,
                       std::shared_ptr<SplitProvider> splits,
                       std::shared_ptr<std::deque<int64_t>> pending) {
  return [=](IndexedElement* element) {
    if (NonBlockingRequests::OnThisThread()) return false;
    if (!pending->empty()) {
      element->index = pending->front();
      pending->pop_front();
    } else {
      Tensor split;
      bool end = false;
      element->status = splits->GetNext(&split, &end);
      if (!element->status.ok()) return true;
      if (end) return false;
      element->index = split.scalar<int64_t>()();
    }
    if (element->index < 0 || element->index >= num_elements) {
      element->status =
          DataLoss("The tf.data service assigned element ", element->index,
                   ", but the source has ", num_elements,
                   " elements here. All processes must read the same files.");
      element->index = -1;
    }
    return true;
  };
}

// Elements that are read together.
struct IndexedPiece : OrderedWorkers::Piece {
  absl::InlinedVector<IndexedElement, 1> elements;
};

class IndexedWork : public OrderedWorkers::Work {
 public:
  // Pieces have at most `most_at_once` elements. The first has one, and sizes
  // double, so that the first element of a slow source comes soon. Both
  // pointers must outlive this object.
  IndexedWork(IndexedReader* reader, FunctionContexts* contexts,
              size_t most_at_once)
      : reader_(reader), contexts_(contexts), most_at_once_(most_at_once) {}

  // From now on reads the elements that `next` gives. `may_wait`: whether
  // `next` may wait; then `Fetch` calls it. Called when no workers run.
  void Begin(NextIndex next, bool may_wait) {
    next_ = std::move(next);
    may_wait_ = may_wait;
    ended_ = false;
  }

  Claimed Claim(std::unique_ptr<OrderedWorkers::Piece>* piece) override {
    if (ended_) return Claimed::kEnd;
    auto claimed = std::make_unique<IndexedPiece>();
    const bool has_more = may_wait_ || Fill(claimed.get());
    if (!has_more) return Claimed::kEnd;
    *piece = std::move(claimed);
    return may_wait_ ? Claimed::kFetch : Claimed::kRun;
  }

  Outcome Fetch(OrderedWorkers::Piece* piece) override {
    auto& fetched = static_cast<IndexedPiece&>(*piece);
    if (ended_ || !Fill(&fetched)) {
      ended_ = true;
      return Outcome::kDropped;
    }
    return fetched.elements.front().status.ok() ? Outcome::kRun
                                                : Outcome::kDone;
  }

  Outcome Run(OrderedWorkers::Piece* piece) override {
    auto& elements = static_cast<IndexedPiece&>(*piece).elements;
    reader_->Read(contexts_, absl::MakeSpan(elements));
    if (const int64_t bytes = Bytes(*piece); bytes > 0) {
      most_of_bytes_ = 1 + kMostBytesAtOnce * elements.size() / bytes;
    }
    return Outcome::kDone;
  }

  int64_t Bytes(const OrderedWorkers::Piece& piece) const override {
    int64_t bytes = 0;
    for (const auto& each : static_cast<const IndexedPiece&>(piece).elements) {
      for (const Tensor& tensor : each.tensors) bytes += tensor.TotalBytes();
    }
    return bytes;
  }

 private:
  // Sets the indices of a piece. Returns false at the end.
  bool Fill(IndexedPiece* piece) {
    auto& elements = piece->elements;
    elements.resize(1);
    if (!next_(&elements.front())) return false;
    if (most_at_once_ == 1 || !elements.front().status.ok()) return true;
    // Only the first element may be waited for. A thread that releases later
    // ones may itself be waiting for the first.
    const NonBlockingRequests does_not_wait;
    const size_t size = std::min(next_size_, most_of_bytes_.load());
    for (IndexedElement more; elements.size() < size && next_(&more);) {
      elements.push_back(std::exchange(more, {}));
    }
    next_size_ = std::min(2 * next_size_, most_at_once_);
    return true;
  }

  IndexedReader* const reader_;
  FunctionContexts* const contexts_;
  const size_t most_at_once_;
  size_t next_size_ = 1;
  // How many elements of the size read last fit into kMostBytesAtOnce.
  std::atomic<size_t> most_of_bytes_{1};
  NextIndex next_;
  bool may_wait_ = false;
  std::atomic<bool> ended_{false};
};

// One of three things determines the elements of an iterator, for its whole
// life: their order; the splits that a service assigns; or an index mapper,
// which is known only when the first element is requested.
class IndexedIterator : public WorkersIterator<IndexedDataset> {
 public:
  explicit IndexedIterator(const Params& params)
      : WorkersIterator(params), num_elements_(reads().num_elements) {}

  ~IndexedIterator() override {
    workers_.Cancel();
    workers_.Stop();
  }

  absl::Status Initialize(IteratorContext* ctx) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(dataset()->MakeReader(ctx, &reader_));
    TF_RETURN_IF_ERROR(workers_.Initialize(ctx));
    if (ctx->split_providers().empty()) return absl::OkStatus();
    TF_ASSIGN_OR_RETURN(splits_, GetSingleSplitProvider(ctx, dataset()));
    return absl::OkStatus();
  }

  absl::Status GetNextInternal(IteratorContext* ctx,
                               std::vector<Tensor>* out_tensors,
                               bool* end_of_sequence) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *end_of_sequence = false;
    out_tensors->clear();
    MakeContexts(ctx);
    if (ctx->index_mapper() != nullptr || splits_ != nullptr) {
      if (!IsRunning()) {
        Start(ctx, ctx->index_mapper() != nullptr
                       ? RequestedIndices(num_elements_, ctx->index_mapper(),
                                          num_requests_)
                       : SplitIndices(num_elements_, splits_, pending_));
      }
      return Next(ctx, out_tensors, end_of_sequence);
    }
    if (position_ >= num_elements_) {
      *end_of_sequence = true;
      return reader_->AtEnd(&*contexts_);
    }
    const int64_t wanted = position_++;
    Plan(ctx, wanted);
    while (true) {
      absl::Status status = Next(ctx, out_tensors, end_of_sequence);
      if (last_read_ >= wanted || *end_of_sequence ||
          absl::IsCancelled(status)) {
        return status;
      }
    }
  }

 protected:
  std::shared_ptr<model::Node> CreateNode(
      IteratorContext*, model::Node::Args args) const override {
    return model::MakeSourceNode(std::move(args));
  }

  absl::Status SkipInternal(IteratorContext* ctx, int num_to_skip,
                            bool* end_of_sequence, int* num_skipped) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (ctx->index_mapper() == nullptr && splits_ == nullptr) {
        const int64_t skipped =
            std::min<int64_t>(num_to_skip, num_elements_ - position_);
        position_ += skipped;
        *num_skipped = static_cast<int>(skipped);
        *end_of_sequence = skipped < num_to_skip;
        return absl::OkStatus();
      }
    }
    return WorkersIterator::SkipInternal(ctx, num_to_skip, end_of_sequence,
                                         num_skipped);
  }

  // Elements read ahead are read again after a restore.
  absl::Status SaveInternal(SerializationContext*,
                            IteratorStateWriter* writer) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kPosition, position_));
    TF_RETURN_IF_ERROR(
        writer->WriteScalar(prefix(), kNumRequests, num_requests_));
    if (splits_ == nullptr) return absl::OkStatus();
    return WhileSettled(
        [&](const auto& ready) { return SaveSplits(writer, ready); });
  }

  absl::Status RestoreInternal(IteratorContext* ctx,
                               IteratorStateReader* reader) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    // Everything is checked before anything is changed.
    const CheckpointReader saved(dataset()->method(), prefix(), ctx, reader);
    int64_t position = 0, num_requests = 0;
    TF_RETURN_IF_ERROR(
        saved.ReadNumber(kPosition, 0, num_elements_, &position));
    TF_RETURN_IF_ERROR(
        saved.ReadNumber(kNumRequests, 0, kMaxRequests, &num_requests));
    if (splits_ != nullptr) {
      std::vector<Tensor> pending;
      TF_RETURN_IF_ERROR(saved.ReadElement(
          kPending, {DT_INT64}, {PartialTensorShape({-1})}, &pending));
      TF_RETURN_IF_ERROR(splits_->Restore(
          [this](const std::string& key) { return full_name(key); }, reader));
      const auto indices = pending.front().vec<int64_t>();
      pending_->assign(indices.data(), indices.data() + indices.size());
    }
    position_ = position;
    last_wanted_ = position - 1;
    num_requests_ = num_requests;
    return absl::OkStatus();
  }

 private:
  const IndexedDataset::Reads& reads() const { return dataset()->reads(); }

  void MakeContexts(IteratorContext* ctx) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (contexts_.has_value()) return;
    contexts_.emplace(ctx, workers_.cancellation_manager(),
                      static_cast<int>(reads().num_readers));
    work_ = std::make_unique<IndexedWork>(reader_.get(), &*contexts_,
                                          reads().most_at_once);
  }

  void Start(IteratorContext* ctx, NextIndex next, bool may_wait = true)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    workers_.Stop();
    piece_.reset();
    work_->Begin(std::move(next), may_wait);
    OrderedWorkers::Options options =
        WorkerOptions(ctx, reads().num_readers, "true", {});
    // The consumer must not call a mapper: if asked too far ahead, the mapper
    // waits until the consumer takes earlier elements.
    options.consumer_helps = !may_wait;
    // With splits, a symbolic checkpoint goes with each element, so nothing may
    // be read ahead.
    if (splits_ != nullptr && ctx->symbolic_checkpoint()) options.max_calls = 0;
    if (reads().most_at_once > 1) {
      // Pieces are large: each reader has one in progress and one ready.
      options.max_pieces = 2 * std::max(1, options.max_calls);
      options.max_small_pieces = 0;
    }
    workers_.Start(options, work_.get(), &contexts_->usual, nullptr);
  }

  // Makes the workers read `wanted` and the elements that are likely to follow.
  void Plan(IteratorContext* ctx, int64_t wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t step = wanted - last_wanted_;
    const bool regular = step == last_step_;
    last_wanted_ = wanted;
    last_step_ = step;
    const int64_t ahead = wanted - last_read_ - plan_step_;
    const int64_t most_passed =
        NumRead() + (reads().num_readers > 0 ? kMostPassed : 0);
    if (IsRunning() && (!regular || step == plan_step_) && ahead >= 0 &&
        ahead % plan_step_ == 0 && ahead / plan_step_ <= most_passed) {
      return;
    }
    plan_step_ = regular ? step : 1;
    last_read_ = wanted - plan_step_;
    Start(ctx, IndicesInOrder(num_elements_, wanted, plan_step_),
          /*may_wait=*/false);
  }

  // How many elements of `piece_` are still to be handed out.
  int64_t NumRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return piece_ == nullptr ? 0 : piece_->elements.size() - next_in_piece_;
  }

  absl::Status Next(IteratorContext* ctx, std::vector<Tensor>* out_tensors,
                    bool* end_of_sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (NumRead() == 0) {
      next_in_piece_ = 0;
      piece_.reset();
      TF_RETURN_IF_ERROR(NextPiece(ctx, &piece_));
      if (piece_ == nullptr) {
        *end_of_sequence = true;
        return reader_->AtEnd(&*contexts_);
      }
    }
    IndexedElement& element = piece_->elements[next_in_piece_++];
    last_read_ = element.index;
    num_requests_ = element.num_requests;
    out_tensors->assign(std::make_move_iterator(element.tensors.begin()),
                        std::make_move_iterator(element.tensors.end()));
    return std::move(element.status);
  }

  // Each piece has one element, because `SplitIndices` gives no more.
  absl::Status SaveSplits(
      IteratorStateWriter* writer,
      const std::vector<const OrderedWorkers::Piece*>& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<int64_t> pending;
    for (const OrderedWorkers::Piece* piece : ready) {
      const auto& element =
          static_cast<const IndexedPiece*>(piece)->elements.front();
      if (element.index >= 0) pending.push_back(element.index);
    }
    pending.insert(pending.end(), pending_->begin(), pending_->end());
    TF_RETURN_IF_ERROR(
        SaveElement(writer, prefix(), kPending, {Vector(pending)}));
    return splits_->Save(
        [this](const std::string& key) { return full_name(key); }, writer);
  }

  const int64_t num_elements_;

  std::unique_ptr<IndexedReader> reader_ ABSL_GUARDED_BY(mu_);
  // Both are made when the first element is requested.
  std::optional<FunctionContexts> contexts_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<IndexedWork> work_ ABSL_GUARDED_BY(mu_);
  // The piece that is being handed out, and its next element.
  std::unique_ptr<IndexedPiece> piece_ ABSL_GUARDED_BY(mu_);
  size_t next_in_piece_ ABSL_GUARDED_BY(mu_) = 0;
  // In order: the next element to hand out; the last one requested, and the
  // step to it; the workers' step; the element read last.
  int64_t position_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_wanted_ ABSL_GUARDED_BY(mu_) = -1;
  int64_t last_step_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t plan_step_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t last_read_ ABSL_GUARDED_BY(mu_) = -1;
  // With a mapper: how many requests it got up to the element handed out last.
  int64_t num_requests_ ABSL_GUARDED_BY(mu_) = 0;
  // With splits: their provider, otherwise null; and the elements of a
  // checkpoint that no thread has begun to read.
  std::shared_ptr<SplitProvider> splits_ ABSL_GUARDED_BY(mu_);
  const std::shared_ptr<std::deque<int64_t>> pending_ =
      std::make_shared<std::deque<int64_t>>();
};

}  // namespace

absl::Status GetNumReads(OpKernelContext* ctx, int64_t* number) {
  TF_RETURN_IF_ERROR(GetScalars(ctx, "num_parallel_reads", number));
  TF_RETURN_IF_ERROR(CheckParallelCalls(*number, "num_parallel_reads"));
  if (*number == kAutotuneCalls) *number = kAutotuneReads;
  return absl::OkStatus();
}

IndexedReader::IndexedReader(const IndexedDataset* dataset)
    : dataset_(*dataset), since_(OpenFiles::Global().Now()) {}

void IndexedReader::Read(FunctionContexts*,
                         absl::Span<IndexedElement> elements) {
  for (IndexedElement& each : elements) {
    each.status = dataset_.ReadOne(each.index, since_, &each.tensors);
  }
}

absl::Status IndexedDataset::MakeSplitProviders(
    std::vector<std::unique_ptr<SplitProvider>>* split_providers) const {
  split_providers->push_back(
      std::make_unique<tensorflow::data::IndexSplitProvider>(
          reads_.num_elements));
  return absl::OkStatus();
}

std::unique_ptr<IteratorBase> IndexedDataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<IndexedIterator>(
      IndexedIterator::Params{this, IteratorPrefix(prefix)});
}

}  // namespace refurbish_tf

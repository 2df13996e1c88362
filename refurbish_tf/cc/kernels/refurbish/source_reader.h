// Reads the source of a refurbish stage, and returns only the samples to
// prepare. In a stream it skips the others.
//
// A stream is shuffled by a buffer (`ShuffleBufferSize`), with random numbers
// from the order's seed and the epoch. A resumed epoch reads the stream from
// its start and fills another buffer: the same samples come, in another order.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/plan/random.h"
#include "refurbish_tf/cc/refurbish/epoch.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"

namespace refurbish_tf {

// The size of a stream's full shuffle buffer. With one element, order is kept.
struct ShuffleBufferSize {
  // 0 means the default.
  static ShuffleBufferSize FromArgument(int64_t elements) {
    if (elements > 0) return {elements, std::numeric_limits<int64_t>::max()};
    return {1000, 256'000'000};
  }

  int64_t elements;
  // With this many bytes the buffer is full, however few elements it has.
  int64_t bytes;
};

// Reads for one epoch. Used by one thread at a time.
class SourceReader {
 public:
  SourceReader(const DatasetBase* source,
               const tensorflow::data::DatasetBaseIterator* parent,
               std::string prefix, std::shared_ptr<Epoch> epoch,
               ShuffleBufferSize shuffle_buffer, uint64_t seed)
      : source_(source),
        parent_(parent),
        prefix_(std::move(prefix)),
        epoch_(std::move(epoch)),
        shuffle_buffer_(shuffle_buffer),
        random_(DeriveKey(seed, Purpose::kShuffleBuffer, epoch_->number())) {}
  ~SourceReader() { Drop(); }
  SourceReader(const SourceReader&) = delete;
  SourceReader& operator=(const SourceReader&) = delete;

  // Reads the next sample to prepare. For a source read by index, the caller
  // sets `*index` to the claimed place's index; for a stream, this method sets
  // it. It is empty at the end, and after an error that belongs to no sample.
  absl::Status Read(IteratorContext* ctx, std::vector<Tensor>* tensors,
                    std::optional<uint32_t>* index) {
    absl::Status status;
    if (input_ == nullptr) status = Begin(ctx);
    if (!epoch_->random_access()) {
      if (status.ok()) return ReadShuffled(ctx, tensors, index);
      index->reset();
      return status;
    }
    // Claims, requests and reads have one order, so this is sample `*index`.
    bool end = false;
    if (status.ok()) status = input_->GetNext(&*mapped_, tensors, &end);
    ++num_read_;
    if (num_read_ % kReadAtOnce == 0) epoch_->NoteRead(num_read_);
    if (!status.ok()) Drop();
    if (end) index->reset();
    return status;
  }

  // Reads the source to its end, and then from its start again.
  absl::Status BeginAnew(IteratorContext* ctx) {
    absl::Status status = ReadToEnd(ctx);
    Drop();
    num_read_ = 0;
    // Even if reading to the end failed, so that its error comes only once.
    epoch_->ReadAnew();
    buffer_.clear();
    buffer_bytes_ = 0;
    stream_ended_ = false;
    position_known_ = true;
    failed_ = absl::OkStatus();
    return status;
  }

  // Requests one more element, so that a `cache` upstream sees its end and a
  // source that has grown is noticed.
  absl::Status ReadToEnd(IteratorContext* ctx) {
    if (input_ == nullptr) return absl::OkStatus();
    std::vector<Tensor> past_the_end;
    std::optional<uint32_t> index(0);  // Reset at the end.
    TF_RETURN_IF_ERROR(Read(ctx, &past_the_end, &index));
    if (!index.has_value()) return absl::OkStatus();
    return Internal(source_->DebugString(),
                    " yields elements that were not asked for.");
  }

  const DatasetBase* source() const { return source_; }

  // False if the source may have lost several elements by an error: then it is
  // unknown which sample was read last.
  bool index_known() const { return index_known_; }

 private:
  // How many samples are read before the epoch is notified again.
  static constexpr size_t kReadAtOnce = 64;

  struct Element {
    std::vector<Tensor> tensors;
    uint32_t index;
    bool index_known;
    int64_t bytes;
  };

  absl::Status Begin(IteratorContext* ctx) {
    IteratorContext::Params params(ctx);
    // A thread of a random-access source must not begin to read before the
    // first request brings its index mapper.
    if (epoch_->random_access()) params.warm_start = false;
    IteratorContext input_ctx(std::move(params));
    TF_RETURN_IF_ERROR(
        source_->MakeIterator(&input_ctx, parent_, prefix_, &input_));
    if (epoch_->random_access()) {
      // Made once: copying a context takes as long as reading a small element.
      IteratorContext::Params mapped(ctx);
      mapped.index_mapper = [epoch = epoch_, first = num_read_,
                             input = epoch_->NewInput()](size_t n) {
        return epoch->Request(first + n, input);
      };
      mapped_.emplace(std::move(mapped));
    }
    return absl::OkStatus();
  }
  // Destroys the input. First fails the requests that its threads wait for.
  void Drop() {
    if (epoch_->random_access()) epoch_->NewInput();
    input_.reset();
  }
  absl::Status ReadShuffled(IteratorContext* ctx, std::vector<Tensor>* tensors,
                            std::optional<uint32_t>* index) {
    index->reset();
    while (failed_.ok() && !stream_ended_ &&
           buffer_bytes_ < shuffle_buffer_.bytes &&
           static_cast<int64_t>(buffer_.size()) < shuffle_buffer_.elements) {
      Element element;
      std::optional<uint32_t> read;
      absl::Status status = ReadStream(ctx, &element.tensors, &read);
      // The buffer is emptied before `failed_` is returned.
      if (!failed_.ok()) break;
      if (!status.ok()) {
        *index = read;
        return status;
      }
      if (!read.has_value()) break;
      element.index = *read;
      element.index_known = position_known_;
      OwnBuffers(&element.tensors);
      element.bytes = SampleBytes(element.tensors);
      buffer_bytes_ += element.bytes;
      buffer_.push_back(std::move(element));
    }
    if (buffer_.empty()) return failed_;
    std::swap(buffer_[random_.Below(buffer_.size())], buffer_.back());
    Element& next = buffer_.back();
    *tensors = std::move(next.tensors);
    *index = next.index;
    index_known_ = next.index_known;
    buffer_bytes_ -= next.bytes;
    buffer_.pop_back();
    return absl::OkStatus();
  }
  absl::Status ReadStream(IteratorContext* ctx, std::vector<Tensor>* tensors,
                          std::optional<uint32_t>* index) {
    while (!stream_ended_) {
      const Advance advance = epoch_->AdvanceStream();
      TF_RETURN_IF_ERROR(PassOver(ctx, advance.pass_over));
      if (advance.wanted) {
        bool end = false;
        absl::Status status = input_->GetNext(ctx, tensors, &end);
        if (!status.ok()) {
          *index = advance.index;
          position_known_ = false;
          return status;
        }
        if (!end) {
          *index = advance.index;
          return absl::OkStatus();
        }
        stream_ended_ = true;
        if (epoch_->num_samples() == kUnknownSamples) {
          epoch_->StreamEnded();
        } else {
          failed_ = OtherLength("fewer than");
        }
        return failed_;
      }
      if (advance.at_end) {
        // A `cache` upstream keeps its contents only when read to its end.
        bool end = false;
        std::vector<Tensor> past_the_end;
        failed_ = input_->GetNext(ctx, &past_the_end, &end);
        if (failed_.ok() && !end) failed_ = OtherLength("more than");
        TF_RETURN_IF_ERROR(failed_);
        stream_ended_ = true;
      }
    }
    return absl::OkStatus();
  }
  absl::Status PassOver(IteratorContext* ctx, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      bool end = false;
      int skipped = 0;
      // One at a time: after an error it is unknown how many were skipped.
      absl::Status status =
          input_->Skip(ctx, /*num_to_skip=*/1, &end, &skipped);
      if (ctx->cancellation_manager()->IsCancelled()) return status;
      // The error of an unwanted element does not matter, but it is unknown how
      // many elements were lost with it.
      position_known_ = position_known_ && status.ok();
      if (status.ok() && end) {
        failed_ = OtherLength("fewer than");
        return failed_;
      }
    }
    return absl::OkStatus();
  }
  absl::Status OtherLength(const char* comparison) const {
    return DataLoss(
        "The source of refurbish yields ", comparison, " the ",
        epoch_->num_samples(),
        " elements it had before, so its samples cannot be identified by "
        "position. Use a source that is the same in every epoch.");
  }

  const DatasetBase* const source_;
  const tensorflow::data::DatasetBaseIterator* const parent_;
  const std::string prefix_;
  const std::shared_ptr<Epoch> epoch_;
  const ShuffleBufferSize shuffle_buffer_;
  RandomStream random_;
  // The context in which a source with random access is read.
  std::optional<IteratorContext> mapped_;
  // Null until a sample must be prepared, and after an error of a source with
  // random access, which may have read a part of an element, as `batch` does.
  std::unique_ptr<IteratorBase> input_;
  // Random access: how many samples were read, or failed.
  size_t num_read_ = 0;
  std::vector<Element> buffer_;
  int64_t buffer_bytes_ = 0;
  bool stream_ended_ = false;
  // For a stream: whether the index of its next element, and of the last
  // element that was returned, is known.
  bool position_known_ = true;
  bool index_known_ = true;
  // The error of a stream that ended too early or too late.
  absl::Status failed_;
};

}  // namespace refurbish_tf

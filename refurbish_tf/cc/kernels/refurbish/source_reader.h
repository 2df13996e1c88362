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
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/plan/random.h"
#include "refurbish_tf/cc/refurbish/epoch.h"

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
                    std::optional<uint32_t>* index);

  // Reads the source to its end, and then from its start again.
  absl::Status BeginAnew(IteratorContext* ctx);

  // Requests one more element, so that a `cache` upstream sees its end and a
  // source that has grown is noticed.
  absl::Status ReadToEnd(IteratorContext* ctx);

  const DatasetBase* source() const { return source_; }

  // False if the source may have lost several elements by an error: then it is
  // unknown which sample was read last.
  bool index_known() const { return index_known_; }

 private:
  struct Element {
    std::vector<Tensor> tensors;
    uint32_t index;
    bool index_known;
    int64_t bytes;
  };

  absl::Status Begin(IteratorContext* ctx);
  // Destroys the input. First fails the requests that its threads wait for.
  void Drop();
  absl::Status ReadShuffled(IteratorContext* ctx, std::vector<Tensor>* tensors,
                            std::optional<uint32_t>* index);
  absl::Status ReadStream(IteratorContext* ctx, std::vector<Tensor>* tensors,
                          std::optional<uint32_t>* index);
  absl::Status PassOver(IteratorContext* ctx, int64_t count);
  absl::Status OtherLength(const char* comparison) const;

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

#include "refurbish_tf/cc/kernels/refurbish/source_reader.h"

#include <utility>

#include "refurbish_tf/cc/sample_store/sample_store.h"

namespace refurbish_tf {
namespace {

// How many samples are read before the epoch is notified again.
constexpr size_t kReadAtOnce = 64;

}  // namespace

void SourceReader::Drop() {
  if (epoch_->random_access()) epoch_->NewInput();
  input_.reset();
}

absl::Status SourceReader::Begin(IteratorContext* ctx) {
  IteratorContext::Params params(ctx);
  // A thread of a random-access source must not begin to read before the first
  // request brings its index mapper.
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

absl::Status SourceReader::BeginAnew(IteratorContext* ctx) {
  absl::Status status = ReadToEnd(ctx);
  Drop();
  num_read_ = 0;
  // Done even if reading to the end failed, so that its error comes only once.
  epoch_->ReadAnew();
  buffer_.clear();
  buffer_bytes_ = 0;
  stream_ended_ = false;
  position_known_ = true;
  failed_ = absl::OkStatus();
  return status;
}

absl::Status SourceReader::ReadToEnd(IteratorContext* ctx) {
  if (input_ == nullptr) return absl::OkStatus();
  std::vector<Tensor> past_the_end;
  std::optional<uint32_t> index(0);  // Reset at the end.
  TF_RETURN_IF_ERROR(Read(ctx, &past_the_end, &index));
  if (!index.has_value()) return absl::OkStatus();
  return Internal(source_->DebugString(),
                  " yields elements that were not asked for.");
}

absl::Status SourceReader::Read(IteratorContext* ctx,
                                std::vector<Tensor>* tensors,
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

absl::Status SourceReader::ReadShuffled(IteratorContext* ctx,
                                        std::vector<Tensor>* tensors,
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

absl::Status SourceReader::PassOver(IteratorContext* ctx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    bool end = false;
    int skipped = 0;
    // One at a time: after an error it would be unknown how many were skipped.
    absl::Status status = input_->Skip(ctx, /*num_to_skip=*/1, &end, &skipped);
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

absl::Status SourceReader::ReadStream(IteratorContext* ctx,
                                      std::vector<Tensor>* tensors,
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
      // A `cache` upstream keeps its contents only when it is read to its end.
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

absl::Status SourceReader::OtherLength(const char* comparison) const {
  return DataLoss("The source of refurbish yields ", comparison, " the ",
                  epoch_->num_samples(),
                  " elements it had before, so its samples cannot be known by "
                  "position. Use a source that is the same in every epoch.");
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/kernels/refurbish/refurbish_iterator.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/checkpoint.h"

namespace refurbish_tf {
namespace {

// Raised when older packages cannot read what is saved now.
constexpr int64_t kCheckpointVersion = 5;
constexpr char kVersion[] = "version";
constexpr char kEnded[] = "ended";

}  // namespace

RefurbishIterator::~RefurbishIterator() {
  workers_.Cancel();
  workers_.Stop();
  absl::MutexLock lock(&mu_);
  if (to_be_restored_) dataset()->stage_->NoteLostPosition();
  running_.source.reset();
}

// Begins no epoch: an iterator that is made but never read must not take one.
absl::Status RefurbishIterator::Initialize(IteratorContext* ctx) {
  {
    absl::MutexLock lock(&mu_);
    to_be_restored_ = ctx->is_restoring();
  }
  TF_RETURN_IF_ERROR(workers_.Initialize(ctx));
  const RefurbishArguments& arguments = dataset()->arguments_;
  functions_.partial.with_seed = arguments.partial_seed;
  functions_.final.with_seed = arguments.final_seed;
  functions_.sample_types = arguments.sample_types;
  functions_.sample_shapes = arguments.sample_shapes;
  TF_RETURN_IF_ERROR(
      dataset()->partial_->Instantiate(ctx, &functions_.partial.function));
  if (dataset()->final_ == nullptr) return absl::OkStatus();
  return dataset()->final_->Instantiate(ctx, &functions_.final.function);
}

void RefurbishIterator::StartWorkers(IteratorContext* ctx) {
  const RefurbishDataset& stage = *dataset();
  std::vector<const InlineFunction*> functions = {stage.partial_.get()};
  if (stage.final_ != nullptr) functions.push_back(stage.final_.get());
  const OrderedWorkers::Options options =
      WorkerOptions(ctx, stage.arguments_.num_parallel_calls,
                    stage.arguments_.deterministic, functions);
  running_.contexts = std::make_unique<FunctionContexts>(
      ctx, workers_.cancellation_manager(), options.max_calls);
  running_.source = std::make_unique<SourceReader>(
      stage.input_, this, prefix(), epoch_,
      ShuffleBufferSize::FromArgument(stage.arguments_.shuffle_buffer_size),
      stage.stage_->order_seed());
  running_.work = std::make_unique<SampleWork>(
      &functions_, running_.contexts.get(), stage.stage_.get(), epoch_,
      running_.source.get());
  workers_.Start(options, running_.work.get(), &running_.contexts->usual,
                 [epoch = epoch_.get()] { epoch->Close(); });
}

absl::Status RefurbishIterator::GetNextInternal(
    IteratorContext* ctx, std::vector<Tensor>* out_tensors,
    bool* end_of_sequence) {
  absl::MutexLock lock(&mu_);
  *end_of_sequence = false;
  if (ended_) {
    absl::Status status = std::exchange(end_status_, absl::OkStatus());
    *end_of_sequence = status.ok();
    return status;
  }
  if (epoch_ == nullptr) {
    absl::StatusOr<std::shared_ptr<Epoch>> epoch =
        dataset()->stage_->StartEpoch();
    if (!epoch.ok()) return epoch.status();
    epoch_ = *std::move(epoch);
  }
  if (workers_.get() == nullptr) StartWorkers(ctx);
  int64_t waited_nanos;
  RecordStop(ctx);
  const OrderedWorkers::Next next =
      workers_.get()->GetNext(&piece_, &waited_nanos);
  RecordStart(ctx);
  if (next == OrderedWorkers::Next::kEnd) {
    absl::Status status = End();
    *end_of_sequence = status.ok();
    return status;
  }
  if (next != OrderedWorkers::Next::kPiece) {
    return OrderedWorkers::ErrorOf(next);
  }
  auto& sample = static_cast<SamplePiece&>(*piece_);
  EpochCounters& counters = epoch_->counters();
  if (sample.fresh) counters.fresh_wait_nanos += waited_nanos;
  // An element that fails because its iterator is cancelled is not lost.
  if (!sample.status.ok() && workers_.cancellation_manager()->IsCancelled()) {
    return sample.status;
  }
  told_ |= absl::IsDataLoss(sample.status);
  const bool last = epoch_->HandedOut(sample.place.index);
  // Where every sample is cached nothing is put.
  epoch_->sample_store().store().LookAtMemory();
  if (!sample.status.ok()) return sample.status;
  ++(sample.fresh ? counters.fresh : counters.cached);
  if (sample.place.missing) ++counters.missing;
  if (sample.place.from_other_jobs) ++counters.from_other_jobs;
  *out_tensors = std::move(sample.tensors);
  // Now, and not when the end is asked for: a consumer that knows the number of
  // elements, as Keras does, never asks.
  if (last) end_status_ = End();
  if (!end_status_.ok() && !told_ && !absl::IsCancelled(end_status_) &&
      !workers_.cancellation_manager()->IsCancelled()) {
    dataset()->stage_->NoteEndError(end_status_);
  }
  return absl::OkStatus();
}

absl::Status RefurbishIterator::End() {
  ended_ = true;
  workers_.Stop();
  absl::Status status = running_.source->ReadToEnd(&running_.contexts->usual);
  running_.source.reset();
  status.Update(running_.work->LateError());
  running_ = Running();
  const std::shared_ptr<Epoch> epoch = std::move(epoch_);
  status.Update(dataset()->stage_->EndEpoch(*epoch));
  return status;
}

std::shared_ptr<tensorflow::data::model::Node> RefurbishIterator::CreateNode(
    IteratorContext*, tensorflow::data::model::Node::Args args) const {
  return tensorflow::data::model::MakeAsyncUnknownRatioNode(std::move(args),
                                                            {});
}

absl::Status RefurbishIterator::SaveInternal(SerializationContext*,
                                             IteratorStateWriter* writer) {
  absl::MutexLock lock(&mu_);
  SavedEpoch saved = dataset()->stage_->Save();
  if (epoch_ != nullptr) epoch_->Save(&saved);
  absl::Status written;
  const auto write = [&](const char* key, const auto* value) {
    if constexpr (std::is_integral_v<std::decay_t<decltype(*value)>>) {
      written.Update(
          writer->WriteScalar(prefix(), key, static_cast<int64_t>(*value)));
    } else {
      written.Update(writer->WriteTensor(prefix(), key, Tensor(*value)));
    }
  };
  write(kVersion, &kCheckpointVersion);
  write(kEnded, &ended_);
  ForEachField(&saved, write);
  return written;
}

absl::Status RefurbishIterator::RestoreInternal(IteratorContext* ctx,
                                                IteratorStateReader* reader) {
  absl::MutexLock lock(&mu_);
  to_be_restored_ = false;
  const CheckpointReader checkpoint("refurbish", prefix(), ctx, reader);
  int64_t version = 0;
  TF_RETURN_IF_ERROR(checkpoint.ReadScalar(kVersion, &version));
  if (version != kCheckpointVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The checkpoint of refurbish has version ", version,
        ", but this refurbish_tf reads version ", kCheckpointVersion,
        ". Use the refurbish_tf that saved it."));
  }
  SavedEpoch saved;
  bool ended = false;
  absl::Status all_read;
  const auto read = [&](const char* key, auto* value) {
    using Value = std::decay_t<decltype(*value)>;
    if constexpr (std::is_integral_v<Value>) {
      int64_t number = *value;
      all_read.Update(checkpoint.ReadScalar(key, &number));
      *value = number;
    } else if constexpr (std::is_same_v<Value, double>) {
      all_read.Update(checkpoint.ReadScalar(key, value));
    } else {
      all_read.Update(checkpoint.Read(key, value));
    }
  };
  read(kEnded, &ended);
  ForEachField(&saved, read);
  TF_RETURN_IF_ERROR(all_read);
  absl::StatusOr<std::shared_ptr<Epoch>> epoch =
      dataset()->stage_->Restore(saved);
  if (!epoch.ok()) return epoch.status();
  workers_.Stop();
  running_.source.reset();
  running_ = Running();
  epoch_ = *std::move(epoch);
  ended_ = ended;
  told_ = false;
  end_status_ = absl::OkStatus();
  return absl::OkStatus();
}

}  // namespace refurbish_tf

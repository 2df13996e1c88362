#include "refurbish_tf/cc/kernels/refurbish/sample_work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/kernels/source_checks/file_of.h"
#include "refurbish_tf/cc/kernels/source_checks/source_probe.h"
#include "refurbish_tf/cc/plan/random.h"

namespace refurbish_tf {
namespace {

std::array<int32_t, 2> SeedOf(const Epoch& epoch, Purpose purpose,
                              uint64_t time, const SamplePiece& piece) {
  return StatelessSeed(epoch.seed(), purpose, time,
                       epoch.InWhole(*piece.place.index));
}

// Reuses the piece's tensor unless a function holds it, because allocating a
// tensor takes as long as a claim.
const Tensor& SeedTensor(const Epoch& epoch, Purpose purpose, uint64_t time,
                         SamplePiece* piece) {
  Tensor& tensor = piece->seed;
  if (!tensor.RefCountIsOne()) {
    tensor = Tensor(tensorflow::DT_INT32, TensorShape({2}));
  }
  const auto values = SeedOf(epoch, purpose, time, *piece);
  std::copy(values.begin(), values.end(), tensor.vec<int32_t>().data());
  return tensor;
}

}  // namespace

OrderedWorkers::Claimed SampleWork::Claim(
    std::unique_ptr<OrderedWorkers::Piece>* piece) {
  if (*piece == nullptr) *piece = std::make_unique<SamplePiece>();
  auto& sample = static_cast<SamplePiece&>(**piece);
  if (num_claimed_ == places_.size()) {
    num_claimed_ = 0;
    switch (epoch_->Next(&places_)) {
      case Epoch::Step::kEnd:
        return OrderedWorkers::Claimed::kEnd;
      case Epoch::Step::kNotNow:
        return OrderedWorkers::Claimed::kNotNow;
      case Epoch::Step::kPlaces:
        break;
    }
  }
  sample.place = std::move(places_[num_claimed_++]);
  sample.status = absl::OkStatus();
  sample.tensors.clear();
  sample.index_known = true;
  sample.row = {};
  if (rows_ != nullptr && rows_->options().in_order) sample.row = rows_->Take();
  sample.fresh = sample.place.from == Place::From::kSource;
  if (sample.fresh) return OrderedWorkers::Claimed::kFetch;
  if (sample.place.from == Place::From::kReading) {
    return OrderedWorkers::Claimed::kRun;
  }
  sample.tensors = std::move(sample.place.sample);
  if (functions_.final.function != nullptr || rows_ != nullptr ||
      sample.place.from_level.has_value()) {
    return OrderedWorkers::Claimed::kRun;
  }
  AppendFinal(&sample);
  return OrderedWorkers::Claimed::kDone;
}

OrderedWorkers::Outcome SampleWork::Fetch(OrderedWorkers::Piece* piece) {
  epoch_->StartReads();
  auto& sample = static_cast<SamplePiece&>(*piece);
  if (sample.place.new_input) {
    absl::Status status = source_.BeginAnew(&contexts_.usual);
    absl::MutexLock lock(&mu_);
    late_error_.Update(status);
  }
  std::optional<uint32_t>& index = sample.place.index;
  sample.status = source_.Read(&contexts_.usual, &sample.tensors, &index);
  sample.index_known = source_.index_known();
  if (!sample.status.ok()) {
    sample.status = index.has_value()
                        ? WithSample(sample.status, "Preparing", *index,
                                     "the source of refurbish")
                        : Printable(sample.status);
    return OrderedWorkers::Outcome::kDone;
  }
  if (index.has_value()) return OrderedWorkers::Outcome::kRun;
  if (epoch_->num_samples_known()) {
    sample.status =
        absl::InternalError("The source ended before a requested sample.");
    return OrderedWorkers::Outcome::kDone;
  }
  epoch_->ArrivalsEnded();
  return Dropped();
}

OrderedWorkers::Outcome SampleWork::Run(OrderedWorkers::Piece* piece) {
  auto& sample = static_cast<SamplePiece&>(*piece);
  if (sample.place.from == Place::From::kReading) {
    if (!epoch_->Read(&sample.place)) return Dropped();
    sample.tensors = std::move(sample.place.sample);
  }
  if (sample.fresh && sample.index_known && epoch_->TakeShared(&sample.place)) {
    sample.tensors = std::move(sample.place.sample);
    sample.fresh = sample.place.missing = false;
  }
  if (sample.fresh) {
    sample.status = Prepare(&sample);
  } else if (sample.place.from_level.has_value()) {
    sample.place.from_other_jobs = true;
    sample.status = stage_.PutPrepared(*epoch_, *sample.place.index,
                                       *sample.place.from_level, sample.tensors,
                                       /*source_sum=*/0);
  }
  if (sample.status.ok()) sample.status = Finish(&sample);
  return OrderedWorkers::Outcome::kDone;
}

bool SampleWork::IsShort(const OrderedWorkers::Piece& piece) const {
  const auto is_native = [](const StageFunction& function) {
    return function.function == nullptr || function.function->is_native();
  };
  const Place::From from = static_cast<const SamplePiece&>(piece).place.from;
  return is_native(functions_.final) && from != Place::From::kReading &&
         (from != Place::From::kSource ||
          (stage_.source_checks().in_graph() && is_native(functions_.partial)));
}

OrderedWorkers::Outcome SampleWork::Dropped() {
  if (rows_ != nullptr && rows_->options().in_order) rows_->Skip(1);
  return OrderedWorkers::Outcome::kDropped;
}

int64_t SampleWork::Bytes(const OrderedWorkers::Piece& piece) const {
  return SampleBytes(static_cast<const SamplePiece&>(piece).tensors);
}

absl::Status SampleWork::Prepare(SamplePiece* piece) {
  const uint32_t index = *piece->place.index;
  uint32_t sum = 0;
  SourceChecks& checks = stage_.source_checks();
  const bool may_be_endless =
      checks.may_be_endless() && !epoch_->num_samples_known();
  // After an error of a stream it is unknown which element this is.
  if (piece->index_known && (checks.checks() || may_be_endless)) {
    uint32_t whole;
    const uint32_t own = ElementChecksum(piece->tensors, &whole);
    if (may_be_endless) CheckEnds(&checks, index, whole);
    if (checks.checks()) {
      sum = own;
      TF_RETURN_IF_ERROR(CheckElement(&checks, "refurbish", source_.source(),
                                      &contexts_.usual, index, sum));
    }
  }
  const Generation generation = epoch_->PreparedGeneration(index);
  const absl::Status status =
      Call(functions_.partial, Purpose::kPartialFunction, generation, piece);
  if (!status.ok()) {
    return WithSample(status, "Preparing", index, "the source of refurbish");
  }
  TF_RETURN_IF_ERROR(CheckShapes(*piece));
  OwnBuffers(&piece->tensors);
  if (!piece->index_known) return absl::OkStatus();
  epoch_->PutShared(index, generation, piece->tensors);
  return stage_.PutPrepared(*epoch_, index, generation, piece->tensors, sum);
}

absl::Status SampleWork::Call(const StageFunction& of, Purpose purpose,
                              uint64_t time, SamplePiece* piece) {
  if (const LayersFunction* layers =
          of.function->LayersFor(piece->tensors, of.with_seed);
      layers != nullptr) {
    const auto seed = SeedOf(*epoch_, purpose, time, *piece);
    std::vector<Tensor> arguments = std::move(piece->tensors);
    return layers->Run(std::move(arguments), &seed, &piece->tensors);
  }
  AppendOthers(of, purpose, time, piece);
  std::vector<Tensor> arguments = std::move(piece->tensors);
  return of.function->Run(&contexts_, std::move(arguments), &piece->tensors);
}

void SampleWork::AppendOthers(const StageFunction& of, Purpose purpose,
                              uint64_t time, SamplePiece* piece) const {
  std::vector<Tensor>& tensors = piece->tensors;
  if (of.with_seed) {
    tensors.push_back(SeedTensor(*epoch_, purpose, time, piece));
  }
  if (of.with_time) tensors.push_back(Tensor(static_cast<int64_t>(time)));
}

void SampleWork::AppendFinal(SamplePiece* piece) const {
  AppendOthers(functions_.final, Purpose::kFinalFunction, epoch_->number(),
               piece);
}

absl::Status SampleWork::Finish(SamplePiece* piece) {
  absl::Status status =
      rows_ == nullptr ? CallFinal(piece) : FinishIntoRow(piece);
  return WithSample(status, "The final augmentation of", *piece->place.index,
                    "refurbish");
}

absl::Status SampleWork::CallFinal(SamplePiece* piece) {
  if (functions_.final.function == nullptr) {
    AppendFinal(piece);
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(
      Call(functions_.final, Purpose::kFinalFunction, epoch_->number(), piece));
  // Results that go into a row need no buffers: they are copied there.
  if (rows_ == nullptr) OwnBuffers(&piece->tensors);
  return absl::OkStatus();
}

absl::Status SampleWork::FinishIntoRow(SamplePiece* piece) {
  const StageFunction& final = functions_.final;
  const bool in_order = rows_->options().in_order;
  absl::Status status;
  if (!in_order) {
    TF_RETURN_IF_ERROR(CallFinal(piece));
    status = rows_->Add(piece->tensors, &piece->row);
  } else if (piece->row.batch == nullptr) {
    return rows_->NoMemory();
  } else if (final.function == nullptr) {
    AppendFinal(piece);
    TF_RETURN_IF_ERROR(rows_->Check(piece->tensors));
    status = BatchRows::Write(piece->tensors, piece->row);
  } else if (const LayersFunction* layers =
                 final.function->LayersFor(piece->tensors, final.with_seed);
             layers != nullptr) {
    const auto seed =
        SeedOf(*epoch_, Purpose::kFinalFunction, epoch_->number(), *piece);
    status = layers->RunInto(piece->tensors, &seed, *rows_, piece->row);
  } else {
    AppendFinal(piece);
    std::vector<Tensor> arguments = std::move(piece->tensors);
    status = final.function->RunInto(&contexts_, std::move(arguments), *rows_,
                                     piece->row);
  }
  piece->tensors.clear();
  return status;
}

absl::Status SampleWork::CheckShapes(const SamplePiece& piece) const {
  const auto& [dtypes, shapes] = functions_.sample_types;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const Tensor& tensor = piece.tensors[i];
    if (tensor.dtype() != dtypes[i] ||
        !shapes[i].IsCompatibleWith(tensor.shape())) {
      return InvalidArgument(
          "partial_fn changed its output structure: component ", i,
          " of sample ", *piece.place.index, " is ",
          DataTypeString(tensor.dtype()), tensor.shape().DebugString(),
          ", but its element_spec says ", DataTypeString(dtypes[i]),
          shapes[i].DebugString(),
          ". Make it return the same structure for every sample.");
    }
  }
  return absl::OkStatus();
}

absl::Status SampleWork::WithSample(const absl::Status& status,
                                    const char* what, uint32_t index,
                                    const char* of) {
  if (status.ok()) return status;
  const std::string file = FileOf(source_.source(), &contexts_.usual, index);
  // TensorFlow's message if the Python function is missing, as in a worker of a
  // tf.data service, which only got the graph.
  const bool is_gone = absl::StrContains(
      status.message(), "Could not find callback with key=pyfunc_");
  return Printable(absl::Status(
      status.code(),
      absl::StrCat(
          what, " sample ", index, " of ", of,
          file.empty() ? "" : absl::StrCat(", the file ", file, ","),
          " failed: ",
          is_gone ? "A function in Python, such as that of numpy_layer or "
                    "numpy_function, can be called only in the process that "
                    "built the stage. With a tf.data service call it in a map "
                    "after distribute, or use layers of rtf.augment. In the "
                    "same process, turn tf.data's debug mode off, in which all "
                    "functions are in Python, or keep the dataset. "
                  : "",
          status.message())));
}

absl::Status SampleWork::LateError() {
  absl::MutexLock lock(&mu_);
  return std::exchange(late_error_, absl::OkStatus());
}

}  // namespace refurbish_tf

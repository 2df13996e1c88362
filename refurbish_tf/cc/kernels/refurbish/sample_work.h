// What a worker of a refurbish stage does for one place of an epoch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/kernels/inline_function.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/refurbish/source_reader.h"
#include "refurbish_tf/cc/kernels/source_checks/source_probe.h"
#include "refurbish_tf/cc/plan/random.h"
#include "refurbish_tf/cc/refurbish/epoch.h"
#include "refurbish_tf/cc/refurbish/stage.h"
#include "refurbish_tf/cc/workers/ordered_workers.h"

namespace refurbish_tf {

// A function of a stage, ready to run, and what it takes after the components
// of its element, in this order.
struct StageFunction {
  std::unique_ptr<InstantiatedInlineFunction> function;
  bool with_seed = false;
  // The generation for the partial function, the epoch for the final one.
  bool with_time = false;
};

struct SamplePiece : OrderedWorkers::Piece {
  Place place;
  bool fresh = false;
  // False if, after an error, it is unknown which sample the source yielded.
  // Then the result is not stored.
  bool index_known = true;
  // The sample, as far as it has been processed, or its error.
  std::vector<Tensor> tensors;
  absl::Status status;
  // The seed for the function that was called last.
  Tensor seed;
  // The row of a batch that the result goes to, if there are batches.
  BatchRows::Row row;
};

inline std::array<int32_t, 2> SeedOf(const Epoch& epoch, Purpose purpose,
                                     uint64_t time, const SamplePiece& piece) {
  return StatelessSeed(epoch.seed(), purpose, time,
                       epoch.InWhole(*piece.place.index));
}

// Reuses the piece's tensor unless a function holds it, because allocating a
// tensor takes as long as a claim.
inline const Tensor& SeedTensor(const Epoch& epoch, Purpose purpose,
                                uint64_t time, SamplePiece* piece) {
  Tensor& tensor = piece->seed;
  if (!tensor.RefCountIsOne()) {
    tensor = Tensor(tensorflow::DT_INT32, TensorShape({2}));
  }
  const auto values = SeedOf(epoch, purpose, time, *piece);
  std::copy(values.begin(), values.end(), tensor.vec<int32_t>().data());
  return tensor;
}

// For each place of an epoch: gets the sample from the store or the source,
// prepares it and puts it into the store if it is fresh, and finishes it.
class SampleWork : public OrderedWorkers::Work {
 public:
  struct Functions {
    StageFunction partial;
    // The function may be null. Then what it would take after the sample is
    // yielded after the sample.
    StageFunction final;
    // The types and shapes of what the partial function returns.
    SampleTypes sample_types;
  };

  // `rows`: the rows of batches, or null if samples are yielded.
  SampleWork(const Functions* functions, FunctionContexts* contexts,
             Stage* stage, std::shared_ptr<Epoch> epoch, SourceReader* source,
             BatchRows* rows)
      : functions_(*functions),
        contexts_(*contexts),
        stage_(*stage),
        epoch_(std::move(epoch)),
        source_(*source),
        rows_(rows) {}

  Claimed Claim(std::unique_ptr<OrderedWorkers::Piece>* piece) override {
    if (*piece == nullptr) *piece = std::make_unique<SamplePiece>();
    auto& sample = static_cast<SamplePiece&>(**piece);
    if (num_claimed_ == places_.size()) {
      num_claimed_ = 0;
      switch (epoch_->Next(&places_)) {
        case Epoch::Step::kEnd:
          return Claimed::kEnd;
        case Epoch::Step::kNotNow:
          return Claimed::kNotNow;
        case Epoch::Step::kPlaces:
          break;
      }
    }
    sample.place = std::move(places_[num_claimed_++]);
    sample.status = absl::OkStatus();
    sample.tensors.clear();
    sample.index_known = true;
    sample.row = {};
    if (rows_ != nullptr && rows_->options().in_order)
      sample.row = rows_->Take();
    sample.fresh = sample.place.from == Place::From::kSource;
    if (sample.fresh) return Claimed::kFetch;
    if (sample.place.from == Place::From::kReading) return Claimed::kRun;
    sample.tensors = std::move(sample.place.sample);
    if (functions_.final.function != nullptr || rows_ != nullptr ||
        sample.place.from_level.has_value()) {
      return Claimed::kRun;
    }
    AppendFinal(&sample);
    return Claimed::kDone;
  }
  Outcome Fetch(OrderedWorkers::Piece* piece) override {
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
      return Outcome::kDone;
    }
    if (index.has_value()) return Outcome::kRun;
    if (epoch_->num_samples_known()) {
      sample.status =
          absl::InternalError("The source ended before a requested sample.");
      return Outcome::kDone;
    }
    epoch_->ArrivalsEnded();
    return Dropped();
  }
  Outcome Run(OrderedWorkers::Piece* piece) override {
    auto& sample = static_cast<SamplePiece&>(*piece);
    if (sample.place.from == Place::From::kReading) {
      if (!epoch_->Read(&sample.place)) return Dropped();
      sample.tensors = std::move(sample.place.sample);
    }
    if (sample.fresh && sample.index_known &&
        epoch_->TakeShared(&sample.place)) {
      sample.tensors = std::move(sample.place.sample);
      sample.fresh = sample.place.missing = false;
    }
    if (sample.fresh) {
      sample.status = Prepare(&sample);
    } else if (sample.place.from_level.has_value()) {
      sample.place.from_other_jobs = true;
      sample.status =
          stage_.PutPrepared(*epoch_, *sample.place.index,
                             *sample.place.from_level, sample.tensors,
                             /*source_sum=*/0);
    }
    if (sample.status.ok()) sample.status = Finish(&sample);
    return Outcome::kDone;
  }
  int64_t Bytes(const OrderedWorkers::Piece& piece) const override {
    return SampleBytes(static_cast<const SamplePiece&>(piece).tensors);
  }
  // Whether only native layers are called, and nothing is waited for.
  bool IsShort(const OrderedWorkers::Piece& piece) const override {
    const auto is_native = [](const StageFunction& function) {
      return function.function == nullptr || function.function->is_native();
    };
    const Place::From from = static_cast<const SamplePiece&>(piece).place.from;
    return is_native(functions_.final) && from != Place::From::kReading &&
           (from != Place::From::kSource ||
            (stage_.source_checks().in_graph() &&
             is_native(functions_.partial)));
  }

  // An error found at the source's end before it was read again. Returned once.
  absl::Status LateError() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::exchange(late_error_, absl::OkStatus());
  }

 private:
  Outcome Dropped() {
    if (rows_ != nullptr && rows_->options().in_order) rows_->Skip(1);
    return Outcome::kDropped;
  }
  absl::Status Prepare(SamplePiece* piece) {
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
  // Calls a function with the piece's tensors and what else it takes. `time`,
  // the generation or the epoch, determines the seed. `into_row`: writes the
  // results into the piece's row.
  absl::Status Call(const StageFunction& of, Purpose purpose, uint64_t time,
                    SamplePiece* piece, bool into_row = false) {
    if (const LayersFunction* layers =
            of.function->LayersFor(piece->tensors, of.with_seed);
        layers != nullptr) {
      const auto seed = SeedOf(*epoch_, purpose, time, *piece);
      std::vector<Tensor> arguments = std::move(piece->tensors);
      return into_row
                 ? layers->RunInto(arguments, &seed, *rows_, piece->row)
                 : layers->Run(std::move(arguments), &seed, &piece->tensors);
    }
    AppendOthers(of, purpose, time, piece);
    std::vector<Tensor> arguments = std::move(piece->tensors);
    return into_row ? of.function->RunInto(&contexts_, std::move(arguments),
                                           *rows_, piece->row)
                    : of.function->Run(&contexts_, std::move(arguments),
                                       &piece->tensors);
  }
  // Appends what the function takes after the components to the tensors.
  void AppendOthers(const StageFunction& of, Purpose purpose, uint64_t time,
                    SamplePiece* piece) const {
    std::vector<Tensor>& tensors = piece->tensors;
    if (of.with_seed) {
      tensors.push_back(SeedTensor(*epoch_, purpose, time, piece));
    }
    if (of.with_time) tensors.push_back(Tensor(static_cast<int64_t>(time)));
  }
  void AppendFinal(SamplePiece* piece) const {
    AppendOthers(functions_.final, Purpose::kFinalFunction, epoch_->number(),
                 piece);
  }
  // Runs the final augmentation, and writes into the row if there are batches.
  absl::Status Finish(SamplePiece* piece) {
    absl::Status status =
        rows_ == nullptr ? CallFinal(piece) : FinishIntoRow(piece);
    return WithSample(status, "The final augmentation of", *piece->place.index,
                      "refurbish");
  }
  absl::Status CallFinal(SamplePiece* piece) {
    if (functions_.final.function == nullptr) {
      AppendFinal(piece);
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(Call(functions_.final, Purpose::kFinalFunction,
                            epoch_->number(), piece));
    // Results that go into a row need no buffers: they are copied there.
    if (rows_ == nullptr) OwnBuffers(&piece->tensors);
    return absl::OkStatus();
  }
  absl::Status FinishIntoRow(SamplePiece* piece) {
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
    } else {
      status = Call(final, Purpose::kFinalFunction, epoch_->number(), piece,
                    /*into_row=*/true);
    }
    piece->tensors.clear();
    return status;
  }
  absl::Status CheckShapes(const SamplePiece& piece) const {
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
  // Adds the index of the sample, and its file if known, to an error.
  absl::Status WithSample(const absl::Status& status, const char* what,
                          uint32_t index, const char* of) {
    if (status.ok()) return status;
    const std::string file = FileOf(source_.source(), &contexts_.usual, index);
    // TensorFlow's message if the Python function is missing, as in a worker of
    // a tf.data service, which only got the graph.
    const bool is_gone = absl::StrContains(
        status.message(), "Could not find callback with key=pyfunc_");
    return Printable(absl::Status(
        status.code(),
        absl::StrCat(
            what, " sample ", index, " of ", of,
            file.empty() ? "" : absl::StrCat(", the file ", file, ","),
            " failed: ",
            is_gone
                ? "A Python function, such as the one of numpy_layer or "
                  "numpy_function, can be called only in the process that "
                  "built the stage. With a tf.data service, call it in a map "
                  "after distribute, or use layers of rtf.augment. In the "
                  "same process, keep the dataset, or turn off tf.data's debug "
                  "mode, in which all functions are Python functions. "
                : "",
            status.message())));
  }

  const Functions& functions_;
  FunctionContexts& contexts_;
  Stage& stage_;
  const std::shared_ptr<Epoch> epoch_;
  SourceReader& source_;
  BatchRows* const rows_;
  // For `Claim`: the next places, and how many of them were claimed.
  std::vector<Place> places_;
  size_t num_claimed_ = 0;
  absl::Mutex mu_;
  absl::Status late_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf

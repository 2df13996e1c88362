#include "refurbish_tf/cc/kernels/source_checks/source_probe.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "refurbish_tf/cc/base/crc32c.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/python_warning.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/op_lists.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/function_handle_cache.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/cpu_info.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/public/version.h"

namespace refurbish_tf {
namespace {

constexpr uint64_t kMostProbed = 64;

std::string Element(uint32_t index, const std::string& file) {
  return absl::StrCat(
      "element ", index,
      file.empty() ? "" : absl::StrCat(", the file ", file, ","));
}

// Which samples to probe: for each of kMostProbed parts of the source, the
// first that is stored and has a checksum.
std::vector<uint32_t> ToProbe(const SourceChecks& checks,
                              const SampleMap<Sample>& store,
                              uint64_t num_samples) {
  std::vector<uint32_t> known;
  if (!checks.knows_any()) return known;
  const auto is_known = [&](uint64_t index) {
    return checks.IsKnown(index) &&
           store.StoredGeneration(checks.shard().InWhole(index)) !=
               kNoGeneration;
  };
  for (uint64_t part = 0; part < kMostProbed; ++part) {
    uint64_t index = part * num_samples / kMostProbed;
    const uint64_t end = (part + 1) * num_samples / kMostProbed;
    while (index < end && !is_known(index)) ++index;
    if (index < end) known.push_back(static_cast<uint32_t>(index));
  }
  return known;
}

// How an element differs from the element that its sample was prepared from.
enum class Differs { kInLabels, kOneOfFew, kAsMost };

// The message that the element at `index` in the source of `method` differs.
// `refused`: a store on disk was filled with another element, and the source
// does not change by itself. `file` may be empty.
std::string WhatDiffers(const SourceChecks& checks, const char* method,
                        Differs how, bool refused, uint32_t index,
                        const std::string& file) {
  if (how == Differs::kInLabels) {
    return absl::StrCat(
        "The source of ", method, " has other labels or weights than ",
        refused ? absl::StrCat("when the cache store ", checks.path(),
                               " was filled")
                : "before",
        ": in ", Element(index, file),
        " only these differ. Let final_fn make labels and weights that change, "
        "for example from an index that the source yields. If they were "
        "corrected once, ",
        kStartEmpty, ".");
  }
  if (how == Differs::kAsMost || refused) {
    return absl::StrCat(
        "The cache store ", checks.path(),
        " was filled from another source: ", Element(index, file),
        " differs from the one that its sample was prepared from (perhaps the "
        "split, the order, files or labels changed), so its samples must not be "
        "used with this source. To use this source, ",
        kStartEmpty, "; to keep using the store, give the former source.");
  }
  return absl::StrCat(
      "The source of ", method,
      " yields different elements than before: ", Element(index, file),
      " differs from the one from which this sample was first prepared. ",
      method,
      " identifies a sample by its position, so some samples may come twice in "
      "an epoch and others not at all. Remove shuffles from the source, such as "
      "in a generator or in WebDataset(...).shuffle, because refurbish "
      "shuffles; draw random numbers in partial_fn instead of the source; in a "
      "numpy_function, copy an argument before writing into it. If a store on "
      "disk was filled from another split, or its data have changed, ",
      kStartEmpty, ".");
}

// Warns once, and returns an error if `refused`. It also warns then, because
// `ignore_errors` could hide the error.
absl::Status Tell(SourceChecks* checks, bool refused, const std::string& what) {
  if (checks->IsFirstWarning()) {
    const std::string text =
        Printable(refused ? what : absl::StrCat(what, " ", kSilence));
    LOG(WARNING) << text;
    WarnInPython(text);
  }
  return refused ? FailedPrecondition(Printable(what)) : absl::OkStatus();
}

std::string ComesAgain(uint32_t period) {
  const std::string number = period == 0 ? "n" : absl::StrCat(period);
  return absl::StrCat(
      "The source of refurbish yields the same elements again ",
      period == 0 ? "and again" : absl::StrCat("after every ", number),
      ", like a generator that never ends. An epoch ends with the source, so "
      "nothing would be reused, and each element takes memory. Put .take(",
      number,
      ") after the source, or end the generator after one pass. If the source "
      "does end, silence this warning: warnings.filterwarnings(\"ignore\", "
      "category=rtf.PipelineWarning).");
}

}  // namespace

std::string FileOf(const DatasetBase* source, IteratorContext* ctx,
                   int64_t index) {
  // Goes upstream while element i is made from element i of the input.
  while (HasTrait(source->type_string(), kOneOfEach) ||
         source->type_string() == "TakeDataset") {
    std::vector<const DatasetBase*> inputs;
    if (!source->InputDatasets(&inputs).ok() || inputs.size() != 1) return "";
    source = inputs[0];
  }
  std::string file;
  if (const auto* const own = dynamic_cast<const NamedDataset*>(source)) {
    file = own->FileOf(index);
  }
  std::vector<Tensor> tensors;
  if (source->type_string() == "TensorSliceDataset") {
    source->Get(AnyContext(ctx), index, &tensors).IgnoreError();
  }
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype() != tensorflow::DT_STRING) continue;
    if (!file.empty() || tensor.dims() != 0) return "";
    file = tensor.scalar<tstring>()();
  }
  // The string may also be other text, or the contents of a file.
  return file.size() < PATH_MAX && file.find('\0') == std::string::npos &&
                 tensorflow::Env::Default()->FileExists(file).ok()
             ? file
             : "";
}

uint32_t ElementChecksum(const std::vector<Tensor>& element, uint32_t* whole) {
  // sums[0]: labels and weights. sums[1]: the rest, with the largest component.
  uint32_t sums[2] = {0, 0};
  const auto content = std::max_element(
      element.begin(), element.end(), [](const Tensor& a, const Tensor& b) {
        return a.TotalBytes() < b.TotalBytes();
      });
  for (size_t i = 0; i < element.size(); ++i) {
    const Tensor& tensor = element[i];
    const bool is_label = &tensor != &*content && tensor.dims() < 2 &&
                          tensor.dtype() != tensorflow::DT_STRING;
    uint32_t& sum = sums[is_label ? 0 : 1];
    const auto add = [&sum](uint64_t number) {
      sum = Crc32c(&number, sizeof(number), sum);
    };
    add(tensor.dtype());
    add(tensor.dims());
    for (int k = 0; k < tensor.dims(); ++k) add(tensor.dim_size(k));
    if (tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
      sum = Crc32c(tensor.data(), tensor.TotalBytes(), sum);
    } else if (tensor.dtype() == tensorflow::DT_STRING) {
      const auto strings = tensor.flat<tstring>();
      for (int64_t k = 0; k < strings.size(); ++k) {
        add(strings(k).size());
        sum = Crc32c(strings(k).data(), strings(k).size(), sum);
      }
    }
  }
  if (whole != nullptr) *whole = Crc32c(&sums[0], sizeof(sums[0]), sums[1]);
  const auto half = [](uint32_t sum) { return (sum ^ sum >> 16) & 0xffff; };
  const uint32_t sum = half(sums[1]) << 16 | half(sums[0]);
  return sum != 0 ? sum : 1;
}

uint64_t Platform(bool computes_floats) {
  // The first number is the version of `ElementChecksum`.
  std::string name = absl::StrCat("3 ", TF_GRAPH_DEF_VERSION);
  if (computes_floats) {
    const char* const one_dnn = std::getenv("TF_ENABLE_ONEDNN_OPTS");
    absl::StrAppend(&name, " ", tensorflow::port::CPUVendorIDString(), " ",
                    tensorflow::port::CPUFamily(), " ",
                    tensorflow::port::CPUModelNum(), " ",
                    tensorflow::port::NumSchedulableCPUs(), " ",
                    one_dnn == nullptr ? "" : one_dnn);
  }
  return Crc32c(name.data(), name.size());
}

absl::Status CheckElement(SourceChecks* checks, const char* method,
                          const DatasetBase* source, IteratorContext* ctx,
                          uint32_t index, uint32_t sum) {
  const Compared compared = checks->Compare(index, sum);
  if (compared == Compared::kSame) return absl::OkStatus();
  const bool refused = compared == Compared::kRefused;
  const Differs how = checks->OnlyLabelsDiffer(index, sum) ? Differs::kInLabels
                                                           : Differs::kOneOfFew;
  return Tell(checks, refused,
              WhatDiffers(*checks, method, how, refused, index,
                          FileOf(source, ctx, index)));
}

void CheckEnds(SourceChecks* checks, uint32_t index, uint32_t whole) {
  const std::optional<uint32_t> period =
      checks->repetitions().Note(index, whole);
  if (period.has_value()) WarnInPython(ComesAgain(*period));
}

absl::Status ProbeSource(OpKernelContext* ctx, const DatasetBase* source,
                         const char* method, SourceChecks* checks,
                         const SampleMap<Sample>& store) {
  const int64_t num_samples = source->Cardinality(CardinalityOptions());
  if (num_samples <= 0) return absl::OkStatus();
  const std::vector<uint32_t> indices = ToProbe(*checks, store, num_samples);
  if (indices.empty()) return absl::OkStatus();
  IteratorContext::Params params(ctx);
  tensorflow::FunctionHandleCache functions(params.flr);
  params.function_handle_cache = &functions;
  tensorflow::ResourceMgr resources;
  params.resource_mgr = &resources;
  tensorflow::CancellationManager cancellation(ctx->cancellation_manager());
  params.cancellation_manager = &cancellation;
  params.warm_start = false;
  IteratorContext unmapped(params);
  params.index_mapper = [&indices](size_t n) -> absl::StatusOr<size_t> {
    if (n < indices.size()) return indices[n];
    return OutOfRange("No more elements to compare.");
  };
  IteratorContext mapped(std::move(params));
  std::unique_ptr<IteratorBase> input;
  TF_RETURN_IF_ERROR(source->MakeIterator(&unmapped, nullptr, "Probe", &input));
  uint32_t num_compared = 0, num_others = 0, num_other_labels = 0;
  std::optional<uint32_t> other;
  for (const uint32_t index : indices) {
    std::vector<Tensor> element;
    bool end = false;
    // Not reported here: the element fails again when it is prepared.
    if (!input->GetNext(&mapped, &element, &end).ok()) continue;
    if (end) break;
    ++num_compared;
    const uint32_t sum = ElementChecksum(element);
    if (checks->Compare(index, sum) == Compared::kSame) continue;
    ++num_others;
    num_other_labels += checks->OnlyLabelsDiffer(index, sum);
    if (!other.has_value()) other = index;
  }
  if (!other.has_value()) return absl::OkStatus();
  const Differs how = num_other_labels == num_others  ? Differs::kInLabels
                      : 2 * num_others > num_compared ? Differs::kAsMost
                                                      : Differs::kOneOfFew;
  return Tell(checks, checks->refuses(),
              WhatDiffers(*checks, method, how, checks->refuses(), *other,
                          FileOf(source, &unmapped, *other)));
}

}  // namespace refurbish_tf

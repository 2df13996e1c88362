#include "refurbish_tf/cc/sample_store/sample_store.h"

#include <algorithm>

#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/sample_store/sample_memory.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace refurbish_tf {
namespace {

using tensorflow::DataTypeVector;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;

bool IsView(const Tensor& tensor) {
  const TensorBuffer* const buffer = tensorflow::DMAHelper::buffer(&tensor);
  if (buffer == nullptr) return false;
  const size_t bytes = tensorflow::DataTypeCanUseMemcpy(tensor.dtype())
                           ? tensor.TotalBytes()
                           : buffer->size();
  return !buffer->OwnsMemory() ||
         const_cast<TensorBuffer*>(buffer)->root_buffer()->size() > bytes;
}

bool IsHeldByOthers(const Tensor& tensor) {
  // Strings need no copy: TensorFlow copies them on their way to Python.
  return tensorflow::DataTypeCanUseMemcpy(tensor.dtype()) &&
         tensor.NumElements() > 0 && !tensor.RefCountIsOne();
}

// Copies the tensors, also inside of variants, that `is_to_copy` accepts.
void CopyIf(bool (*is_to_copy)(const Tensor&), Sample* sample) {
  for (Tensor& each : *sample) {
    ForEachTensor(each, [is_to_copy](Tensor& tensor) {
      // A variant itself is always copied: copies replace tensors inside of it,
      // and others may hold it.
      const bool has_tensors = tensor.dtype() == tensorflow::DT_VARIANT;
      if (has_tensors ||
          (tensor.dtype() != tensorflow::DT_RESOURCE && is_to_copy(tensor))) {
        tensor = tensorflow::tensor::DeepCopy(tensor);
      }
      return has_tensors;
    });
  }
}

}  // namespace

bool SampleTypes::operator==(const SampleTypes& other) const {
  return dtypes == other.dtypes &&
         std::equal(shapes.begin(), shapes.end(), other.shapes.begin(),
                    other.shapes.end(), [](const auto& a, const auto& b) {
                      return a.IsIdenticalTo(b);
                    });
}

bool SampleTypes::Allow(const Sample& sample) const {
  if (sample.size() != dtypes.size()) return false;
  for (size_t i = 0; i < sample.size(); ++i) {
    if (sample[i].dtype() != dtypes[i] ||
        !shapes[i].IsCompatibleWith(sample[i].shape())) {
      return false;
    }
  }
  return true;
}

int64_t SampleBytes(const Sample& sample) {
  int64_t bytes = 0;
  for (const Tensor& each : sample) {
    ForEachTensor(each, [&bytes](const Tensor& tensor) {
      bytes += tensor.dtype() == tensorflow::DT_VARIANT
                   ? tensor.NumElements() * sizeof(tensorflow::Variant)
                   : tensor.TotalBytes();
      return true;
    });
  }
  return bytes;
}

void OwnBuffers(Sample* sample) { CopyIf(IsView, sample); }

void CopyHeldByOthers(Sample* sample) { CopyIf(IsHeldByOthers, sample); }

int64_t FixedSampleBytes(const SampleTypes& types) {
  int64_t bytes = 0;
  for (size_t i = 0; i < types.dtypes.size(); ++i) {
    const tensorflow::DataType dtype = types.dtypes[i];
    const int64_t elements = types.shapes[i].num_elements();
    if (elements < 0 || !tensorflow::DataTypeCanUseMemcpy(dtype)) return -1;
    bytes += elements * tensorflow::DataTypeSize(dtype);
  }
  return bytes;
}

absl::Status SampleStore::CheckTypes(const DataTypeVector& dtypes) {
  if (!dtypes_.has_value() || dtypes == *dtypes_) return absl::OkStatus();
  return InvalidArgument("Got a sample with components of types [",
                         tensorflow::DataTypeVectorString(dtypes),
                         "], but the samples of this CacheStore have [",
                         tensorflow::DataTypeVectorString(*dtypes_),
                         "]. Use a separate CacheStore for each kind.");
}

absl::Status SampleStore::Put(uint64_t index, Sample sample) {
  DataTypeVector dtypes;
  for (const Tensor& tensor : sample) dtypes.push_back(tensor.dtype());
  RTF_RETURN_IF_ERROR(CheckDirectory());
  {
    absl::MutexLock lock(&mu_);
    RTF_RETURN_IF_ERROR(CheckTypes(dtypes));
  }
  Generation generation = store().StoredGeneration(index);
  if (generation == kNoGeneration) generation = 0;
  const int64_t bytes = Bytes(sample);
  RTF_ASSIGN_OR_RETURN(const PutResult result,
                       PutNow(index, generation, std::move(sample)));
  const auto refused = [&](const auto&... why) {
    return ResourceExhausted("The sample of ", bytes, " bytes at index ", index,
                             " ", why...);
  };
  if (result == PutResult::kFailed) {
    return refused(
        "could not be written to the disk. Check that the disk is not full and "
        "that the sample has at most ",
        limits().bytes, " bytes.");
  }
  if (result == PutResult::kNoRoom) {
    return refused("does not fit: the CacheStore holds ", store().Stats().bytes,
                   " bytes of max_bytes=", store().max_bytes(),
                   ". Remove samples or make a CacheStore with a larger "
                   "max_bytes.");
  }
  if (result == PutResult::kMemoryShort) {
    return refused("was not kept: memory is short, and the CacheStore holds ",
                   store().Stats().bytes,
                   " bytes. Free memory, or make a CacheStore in a directory.");
  }
  // Set only after the put: a refused sample must not set the types.
  absl::MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(CheckTypes(dtypes));
  dtypes_ = std::move(dtypes);
  return absl::OkStatus();
}

NamedNumbers SampleStore::Counts() {
  const SampleMapStats stats = store().Stats();
  return {{"entries", stats.entries},
          {"bytes", stats.bytes},
          {"hits", stats.hits},
          {"misses", stats.misses},
          {"evictions", stats.evictions}};
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/kernels/sample_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/registry.h"
#include "refurbish_tf/cc/store/memory_store.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/kernels/ragged_tensor_variant.h"

namespace refurbish_tf {
namespace {

using tensorflow::DataTypeVector;
using tensorflow::RaggedTensorVariant;
using tensorflow::Tensor;
using tensorflow::Variant;

int64_t TensorBytes(const Tensor& tensor) {
  if (tensor.dtype() != tensorflow::DT_VARIANT) return tensor.TotalBytes();
  int64_t bytes = 0;
  const auto flat = tensor.flat<Variant>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    bytes += sizeof(Variant);
    if (const Tensor* component = flat(i).get<Tensor>()) {
      bytes += TensorBytes(*component);
    } else if (const auto* ragged = flat(i).get<RaggedTensorVariant>()) {
      bytes += TensorBytes(ragged->values());
      for (const Tensor& splits : ragged->nested_splits()) {
        bytes += TensorBytes(splits);
      }
    }
  }
  return bytes;
}

}  // namespace

int64_t SampleBytes(const Sample& sample) {
  int64_t bytes = 0;
  for (const Tensor& tensor : sample) bytes += TensorBytes(tensor);
  return bytes;
}

int64_t FixedSampleBytes(
    const DataTypeVector& dtypes,
    const std::vector<tensorflow::PartialTensorShape>& shapes) {
  int64_t bytes = 0;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const int64_t elements = shapes[i].num_elements();
    if (elements < 0 || !tensorflow::DataTypeCanUseMemcpy(dtypes[i])) return -1;
    bytes += elements * tensorflow::DataTypeSize(dtypes[i]);
  }
  return bytes;
}

std::shared_ptr<SampleStore> SampleStore::GetOrCreate(const std::string& id,
                                                      int64_t max_bytes) {
  return Registry<SampleStore>::Global().GetOrCreate(
      id, [&] { return std::make_shared<SampleStore>(max_bytes); });
}

absl::StatusOr<std::shared_ptr<SampleStore>> SampleStore::Find(
    const std::string& id) {
  std::shared_ptr<SampleStore> store = Registry<SampleStore>::Global().Find(id);
  if (store == nullptr) {
    return absl::NotFoundError(
        "This CacheStore is not there any more: keep a reference to the Python "
        "object for as long as a function uses it.");
  }
  return store;
}

SampleStore::SampleStore(int64_t max_bytes)
    : store_(std::make_unique<MemoryStore<Sample>>(max_bytes, SampleBytes)) {}

absl::Status SampleStore::CheckTypes(const DataTypeVector& dtypes) {
  if (!typed_ || dtypes == dtypes_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Got a sample with components of types [",
      tensorflow::DataTypeVectorString(dtypes),
      "], but the samples of this CacheStore have [",
      tensorflow::DataTypeVectorString(dtypes_),
      "]. Use one CacheStore for one kind of sample."));
}

absl::Status SampleStore::Reserve(const std::string& stage,
                                  std::weak_ptr<void> alive,
                                  const DataTypeVector& dtypes) {
  absl::MutexLock lock(&mu_);
  if (!stage_alive_.expired()) {
    if (stage == stage_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "This CacheStore is in use by another refurbish stage, whose samples "
        "have the same indices. Give each stage a CacheStore of its own.");
  }
  if (stage_.empty() && store_->Stats().entries > 0) {
    return absl::FailedPreconditionError(
        "This CacheStore holds samples that were put into it by hand, and it is "
        "not known whether they are what partial_fn would return. Clear it "
        "first, or give the stage a CacheStore of its own.");
  }
  store_->Clear();
  SetTypes(dtypes);
  stage_ = stage;
  stage_alive_ = std::move(alive);
  return absl::OkStatus();
}

absl::Status SampleStore::Put(uint64_t index, Sample sample) {
  DataTypeVector dtypes;
  for (const Tensor& tensor : sample) dtypes.push_back(tensor.dtype());
  absl::MutexLock lock(&mu_);
  absl::Status status = CheckTypes(dtypes);
  if (!status.ok()) return status;
  Generation generation = store_->StoredGeneration(index);
  if (generation == kNoGeneration) generation = 0;
  const int64_t bytes = SampleBytes(sample);
  if (store_->Put(index, generation, std::move(sample)) ==
      PutResult::kNoRoom) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "The sample of ", bytes, " bytes at index ", index,
        " does not fit: the CacheStore holds ", store_->Stats().bytes,
        " bytes of max_bytes=", store_->max_bytes(),
        ". Remove samples or make a CacheStore with a larger max_bytes."));
  }
  // Not before: a sample that was refused says nothing of those to come.
  SetTypes(dtypes);
  return absl::OkStatus();
}

}  // namespace refurbish_tf

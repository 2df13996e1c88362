#include "refurbish_tf/cc/store/samples/sample_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/store/memory_store.h"
#include "refurbish_tf/cc/store/samples/disk_samples.h"
#include "refurbish_tf/cc/store/samples/sample_codec.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/kernels/ragged_tensor_variant.h"

namespace refurbish_tf {
namespace {

using tensorflow::DataTypeVector;
using tensorflow::RaggedTensorVariant;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
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
  // Strings are copied on their way to Python.
  return tensorflow::DataTypeCanUseMemcpy(tensor.dtype()) &&
         tensor.NumElements() > 0 && !tensor.RefCountIsOne();
}

// Copies the tensor, or those that it consists of, where `is_to_copy`.
void CopyIf(bool (*is_to_copy)(const Tensor&), Tensor* tensor) {
  if (tensor->dtype() == tensorflow::DT_VARIANT) {
    // A copy, as others may hold the elements that are changed here.
    *tensor = tensorflow::tensor::DeepCopy(*tensor);
    auto flat = tensor->flat<Variant>();
    for (int64_t i = 0; i < flat.size(); ++i) {
      if (Tensor* component = flat(i).get<Tensor>()) {
        CopyIf(is_to_copy, component);
      } else if (auto* ragged = flat(i).get<RaggedTensorVariant>()) {
        CopyIf(is_to_copy, ragged->mutable_values());
        for (Tensor& splits : *ragged->mutable_nested_splits()) {
          CopyIf(is_to_copy, &splits);
        }
      }
    }
  } else if (tensor->dtype() != tensorflow::DT_RESOURCE &&
             is_to_copy(*tensor)) {
    *tensor = tensorflow::tensor::DeepCopy(*tensor);
  }
}

// Prefetches the tensors, and then their buffers, which hold the reference
// counts.
void PrefetchSamples(const Sample* const* samples, size_t count) {
  for (size_t i = 0; i < count; ++i) __builtin_prefetch(samples[i]->data());
  for (size_t i = 0; i < count; ++i) {
    for (const Tensor& tensor : *samples[i]) {
      __builtin_prefetch(tensorflow::DMAHelper::buffer(&tensor));
    }
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
  for (const Tensor& tensor : sample) bytes += TensorBytes(tensor);
  return bytes;
}

void OwnBuffers(Sample* sample) {
  for (Tensor& tensor : *sample) CopyIf(IsView, &tensor);
}

void CopyHeldByOthers(Sample* sample) {
  for (Tensor& tensor : *sample) CopyIf(IsHeldByOthers, &tensor);
}

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

absl::StatusOr<std::shared_ptr<SampleStore>> SampleStore::GetOrCreate(
    const std::string& id, int64_t max_bytes, const std::string& mode) {
  const bool overwrite = mode == "overwrite";
  absl::Status status;
  bool created = false;
  std::shared_ptr<SampleStore> store =
      Registry<SampleStore>::Global().GetOrCreate(
          id, [&]() -> std::shared_ptr<SampleStore> {
            created = true;
            if (id.empty() || id[0] != '/') {
              return std::make_shared<SampleStore>(max_bytes);
            }
            DiskStoreOptions options;
            options.max_bytes = max_bytes;
            options.overwrite = overwrite;
            options.must_exist = mode == "inspect";
            auto disk = DiskStore::Open(id, std::move(options));
            if (!disk.ok()) {
              // To the user any of these is a wrong argument.
              status = absl::FailedPreconditionError(
                  Printable(disk.status().message()));
              return nullptr;
            }
            return std::make_shared<SampleStore>(*std::move(disk));
          });
  if (!status.ok()) return status;
  if (created) return store;
  if (overwrite) {
    return absl::FailedPreconditionError(absl::StrCat(
        "The cache store ", id,
        " is in use in this process, so it cannot be emptied "
        "with overwrite=True. Drop the CacheStore and the datasets that use "
        "it first (del, gc.collect()), or give another directory."));
  }
  if (max_bytes != kUnlimited && store->store().max_bytes() != max_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "The cache store ", id, " is in use in this process with max_bytes=",
        store->store().max_bytes(), ", got ", max_bytes,
        ". Use one CacheStore object for both, or the same max_bytes."));
  }
  return store;
}

absl::StatusOr<std::shared_ptr<SampleStore>> SampleStore::Find(
    const std::string& id) {
  std::shared_ptr<SampleStore> store = Registry<SampleStore>::Global().Find(id);
  if (store == nullptr) {
    return absl::NotFoundError(
        "This CacheStore no longer exists: keep a reference to the Python "
        "object for as long as a function uses it.");
  }
  return store;
}

SampleStore::SampleStore(int64_t max_bytes)
    : store_(std::make_unique<MemoryStore<Sample>>(max_bytes, SampleBytes,
                                                   PrefetchSamples)) {}

SampleStore::SampleStore(std::unique_ptr<DiskStore> disk)
    : store_(std::make_unique<DiskSamples>(std::move(disk))),
      disk_samples_(static_cast<DiskSamples*>(store_.get())) {}

SampleStore::~SampleStore() = default;

DiskStore* SampleStore::disk() {
  return disk_samples_ == nullptr ? nullptr : &disk_samples_->disk();
}

PutResult SampleStore::PutInTransit(uint64_t index, Generation generation,
                                    const Sample& sample) {
  return disk_samples_->PutInTransit(index, generation, sample);
}

int64_t SampleStore::Bytes(const Sample& sample) const {
  if (disk_samples_ == nullptr) return SampleBytes(sample);
  EncodedSample encoded;
  if (!EncodedSample::Encode(sample, &encoded).ok()) return 0;
  uint64_t size = sizeof(RecordHeader);
  for (const iovec& part : encoded.parts()) size += part.iov_len;
  return RecordSpace(size);
}

int64_t SampleStore::FixedBytes(const SampleTypes& types) const {
  if (disk_samples_ == nullptr) return FixedSampleBytes(types);
  const int64_t bytes = FixedEncodedBytes(types);
  return bytes < 0 ? bytes : RecordSpace(sizeof(RecordHeader) + bytes);
}

absl::Status SampleStore::Expect(const SampleTypes& types) {
  absl::Status encodable = CheckEncodable(types.dtypes);
  if (!encodable.ok() || disk_samples_->Expect(types)) return encodable;
  return absl::FailedPreconditionError(
      "This CacheStore is in use by a refurbish stage whose samples have other "
      "types or shapes. Use one CacheStore for one kind of sample.");
}

absl::Status SampleStore::CheckDirectory() {
  if (disk() == nullptr || !disk()->DirectoryIsGone()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "The directory of the cache store ", disk()->directory(),
      " was deleted while the store was in use in this process. Drop the "
      "CacheStore and the datasets that use it first (del, gc.collect()), or "
      "give another directory."));
}

absl::Status SampleStore::Agree(
    const std::map<std::string, std::string>& settings, bool replace,
    std::chrono::milliseconds patience) {
  DiskStore& disk = *this->disk();
  absl::Status status = disk.Agree(settings, replace, patience);
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::FailedPreconditionError(absl::StrCat(
      "The samples in the cache store ", disk.directory(),
      " were prepared in another way: ", status.message(),
      ". To use these samples, give the former value, here or in version=. To "
      "start with an empty store, use store=rtf.CacheStore(path, "
      "overwrite=True) or another directory."));
}

absl::Status SamplesPutByHand() {
  return absl::FailedPreconditionError(
      "This CacheStore holds samples that were put into it by hand, and it is "
      "not known whether they are what partial_fn would return. Clear it first, "
      "or give the stage a CacheStore of its own.");
}

absl::Status SampleStore::CheckTypes(const DataTypeVector& dtypes) {
  if (!dtypes_.has_value() || dtypes == *dtypes_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Got a sample with components of types [",
                   tensorflow::DataTypeVectorString(dtypes),
                   "], but the samples of this CacheStore have [",
                   tensorflow::DataTypeVectorString(*dtypes_),
                   "]. Use one CacheStore for one kind of sample."));
}

absl::Status SampleStore::Reserve(const std::string& stage,
                                  std::weak_ptr<void> alive,
                                  const DataTypeVector& dtypes) {
  absl::MutexLock lock(&mu_);
  if (!stage_alive_.expired()) {
    if (stage == stage_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "This CacheStore is in use by another refurbish stage or by cached, "
        "whose samples have the same indices. Give each stage a CacheStore of "
        "its own.");
  }
  if (stage_.empty() && store_->Stats().entries > 0) return SamplesPutByHand();
  store_->Clear();
  dtypes_ = dtypes;
  stage_ = stage;
  stage_alive_ = std::move(alive);
  return absl::OkStatus();
}

absl::Status SampleStore::Put(uint64_t index, Sample sample) {
  DataTypeVector dtypes;
  for (const Tensor& tensor : sample) dtypes.push_back(tensor.dtype());
  absl::Status status = CheckDirectory();
  if (!status.ok()) return status;
  {
    absl::MutexLock lock(&mu_);
    status = CheckTypes(dtypes);
  }
  if (!status.ok()) return status;
  Generation generation = store_->StoredGeneration(index);
  if (generation == kNoGeneration) generation = 0;
  const int64_t bytes = Bytes(sample);
  if (disk_samples_ == nullptr) {
    OwnBuffers(&sample);
  } else {
    EncodedSample encoded;
    status = EncodedSample::Encode(sample, &encoded);
    if (!status.ok()) return status;
    if (index >= Index::kMaxSamples) {
      return absl::InvalidArgumentError(absl::StrCat(
          "index must be below 2**28 for a cache store on disk, got ", index,
          ". It is the position of the sample in the source."));
    }
    // Else it would keep a stored sample of the same generation.
    store_->Remove(index);
  }
  PutResult result = store_->Put(index, generation, std::move(sample));
  if (disk_samples_ != nullptr && result == PutResult::kStored) {
    disk()->Flush();
    if (store_->StoredGeneration(index) == kNoGeneration) {
      result = PutResult::kFailed;
    }
  }
  if (result == PutResult::kFailed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "The sample of ", bytes, " bytes at index ", index,
        " could not be written to the disk. Is it full? A sample may have ",
        kMaxRecord, " bytes at most."));
  }
  if (result == PutResult::kNoRoom) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "The sample of ", bytes, " bytes at index ", index,
        " does not fit: the CacheStore holds ", store_->Stats().bytes,
        " bytes of max_bytes=", store_->max_bytes(),
        ". Remove samples or make a CacheStore with a larger max_bytes."));
  }
  if (result == PutResult::kMemoryShort) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "The sample of ", bytes, " bytes at index ", index,
        " was not kept: memory is short, and the CacheStore holds ",
        store_->Stats().bytes,
        " bytes of it. Free memory, or make a CacheStore in a directory."));
  }
  // Only now: a refused sample must not set the types.
  absl::MutexLock lock(&mu_);
  status = CheckTypes(dtypes);
  if (status.ok()) dtypes_ = std::move(dtypes);
  return status;
}

}  // namespace refurbish_tf

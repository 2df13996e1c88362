// The lookup ops of `CacheStore`.
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"
#include "tensorflow/core/framework/op_requires.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"

namespace refurbish_tf {
namespace {

using tensorflow::OpInputList;

// Keeps a store alive from Python. It cannot be serialized: the ops find the
// store by its name.
struct StoreReference {
  std::shared_ptr<SampleStore> store;
  std::string TypeName() const { return "refurbish_tf::StoreReference"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
  std::string DebugString() const { return TypeName(); }
};

absl::Status ParseStore(OpKernelContext* ctx,
                        std::shared_ptr<SampleStore>* store) {
  const Tensor& id = ctx->input(0);
  if (!tensorflow::TensorShapeUtils::IsScalar(id.shape())) {
    return absl::InvalidArgumentError("`store` must be a scalar.");
  }
  absl::StatusOr<std::shared_ptr<SampleStore>> found =
      SampleStore::Find(id.scalar<tstring>()());
  if (!found.ok()) return found.status();
  *store = *std::move(found);
  return absl::OkStatus();
}

absl::Status ParseIndex(OpKernelContext* ctx, uint64_t* index) {
  const Tensor& tensor = ctx->input(1);
  if (!tensorflow::TensorShapeUtils::IsScalar(tensor.shape())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`index` must be a scalar, got shape ", tensor.shape().DebugString(),
        "."));
  }
  const int64_t value = tensor.scalar<int64_t>()();
  if (value < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`index` must be at least 0, got ", value,
        ". It is the position of the sample in the source."));
  }
  *index = value;
  return absl::OkStatus();
}

class HandleOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) override {
    absl::StatusOr<std::shared_ptr<SampleStore>> store =
        SampleStore::GetOrCreate(ctx->input(0).scalar<tstring>()(),
                                 ctx->input(1).scalar<int64_t>()(),
                                 ctx->input(2).scalar<tstring>()());
    OP_REQUIRES_OK(ctx, store.status());
    OP_REQUIRES_OK(ctx, (*store)->CheckDirectory());
    Tensor handle(tensorflow::DT_VARIANT, TensorShape({}));
    handle.scalar<tensorflow::Variant>()() =
        StoreReference{*std::move(store)};
    ctx->set_output(0, handle);
  }
};

// An op on the store that its first input names.
class StoreOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* ctx) final {
    std::shared_ptr<SampleStore> store;
    OP_REQUIRES_OK(ctx, ParseStore(ctx, &store));
    OP_REQUIRES_OK(ctx, Apply(ctx, *store));
  }

 protected:
  virtual absl::Status Apply(OpKernelContext* ctx, SampleStore& store) = 0;

  template <class T>
  static void SetScalarOutput(OpKernelContext* ctx, T value) {
    Tensor output(tensorflow::DataTypeToEnum<T>::value, TensorShape({}));
    output.scalar<T>()() = value;
    ctx->set_output(0, output);
  }

  static void SetVectorOutput(OpKernelContext* ctx,
                              std::initializer_list<int64_t> values) {
    Tensor output(tensorflow::DT_INT64,
                  TensorShape({static_cast<int64_t>(values.size())}));
    std::copy(values.begin(), values.end(), output.vec<int64_t>().data());
    ctx->set_output(0, output);
  }
};

class GetOp : public StoreOp {
 public:
  explicit GetOp(OpKernelConstruction* ctx) : StoreOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_types", &dtypes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("output_shapes", &shapes_));
  }

 protected:
  absl::Status Apply(OpKernelContext* ctx, SampleStore& store) override {
    uint64_t index;
    absl::Status status = ParseIndex(ctx, &index);
    if (!status.ok()) return status;
    Sample sample;
    Generation generation;
    if (!store.store().Get(index, {}, &sample, &generation)) {
      return absl::NotFoundError(absl::StrCat(
          "There is no sample at index ", index, " of the CacheStore."));
    }
    if (sample.size() != dtypes_.size()) return OtherTypes(sample, index);
    for (size_t i = 0; i < sample.size(); ++i) {
      if (sample[i].dtype() != dtypes_[i] ||
          !shapes_[i].IsCompatibleWith(sample[i].shape())) {
        return OtherTypes(sample, index);
      }
    }
    for (size_t i = 0; i < sample.size(); ++i) ctx->set_output(i, sample[i]);
    return absl::OkStatus();
  }

 private:
  absl::Status OtherTypes(const Sample& sample, uint64_t index) const {
    std::string found;
    for (const Tensor& tensor : sample) {
      absl::StrAppend(&found, " ", tensorflow::DataTypeString(tensor.dtype()),
                      tensor.shape().DebugString());
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "The sample at index ", index, " of the CacheStore has components",
        found, ", which the store's element_spec does not allow."));
  }

  DataTypeVector dtypes_;
  std::vector<PartialTensorShape> shapes_;
};

class PutOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  absl::Status Apply(OpKernelContext* ctx, SampleStore& store) override {
    uint64_t index;
    absl::Status status = ParseIndex(ctx, &index);
    if (!status.ok()) return status;
    OpInputList components;
    status = ctx->input_list("components", &components);
    if (!status.ok()) return status;
    return store.Put(index, Sample(components.begin(), components.end()));
  }
};

class RemoveOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  absl::Status Apply(OpKernelContext* ctx, SampleStore& store) override {
    uint64_t index;
    absl::Status status = ParseIndex(ctx, &index);
    if (!status.ok()) return status;
    SetScalarOutput<bool>(ctx, store.store().Remove(index));
    return absl::OkStatus();
  }
};

class ContainsOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  absl::Status Apply(OpKernelContext* ctx, SampleStore& store) override {
    uint64_t index;
    absl::Status status = ParseIndex(ctx, &index);
    if (!status.ok()) return status;
    SetScalarOutput<bool>(ctx,
                          store.store().StoredGeneration(index) != kNoGeneration);
    return absl::OkStatus();
  }
};

class ClearOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  absl::Status Apply(OpKernelContext*, SampleStore& store) override {
    store.store().Clear();
    return absl::OkStatus();
  }
};

class StatsOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  absl::Status Apply(OpKernelContext* ctx, SampleStore& store) override {
    DiskStore::Counts counts;
    if (store.disk() != nullptr) {
      counts = store.disk()->Stats();
    } else {
      counts.store = store.store().Stats();
    }
    SetVectorOutput(ctx, {
        counts.store.entries, counts.store.bytes,  counts.store.hits,
        counts.store.misses,  counts.store.evictions,
        counts.disk_bytes,    counts.segments,     counts.compactions,
        counts.bytes_moved,   counts.corrupt,      counts.foreign_hits,
        counts.failed_writes, counts.epochs});
    return absl::OkStatus();
  }
};

// An op on a store that must be on disk.
class DiskStoreOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  absl::Status Apply(OpKernelContext* ctx, SampleStore& store) final {
    if (store.disk() == nullptr) {
      return absl::InvalidArgumentError("This CacheStore is not on disk.");
    }
    return ApplyToDisk(ctx, store);
  }
  virtual absl::Status ApplyToDisk(OpKernelContext* ctx,
                                   SampleStore& store) = 0;
};

class AgreeOp : public DiskStoreOp {
 public:
  explicit AgreeOp(OpKernelConstruction* ctx) : DiskStoreOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("replace", &replace_));
  }

 protected:
  absl::Status ApplyToDisk(OpKernelContext* ctx, SampleStore& store) override {
    const auto names = ctx->input(1).flat<tstring>();
    const auto values = ctx->input(2).flat<tstring>();
    if (names.size() != values.size()) {
      return absl::InvalidArgumentError("A value for each name is needed.");
    }
    Settings settings;
    for (int64_t i = 0; i < names.size(); ++i) settings[names(i)] = values(i);
    absl::Status status = store.CheckDirectory();
    if (status.ok()) status = store.Agree(settings, replace_);
    // For the user all of these are a wrong argument.
    if (!status.ok()) return absl::FailedPreconditionError(status.message());
    settings = store.disk()->settings();
    const TensorShape shape({static_cast<int64_t>(settings.size())});
    Tensor agreed_names(tensorflow::DT_STRING, shape);
    Tensor agreed_values(tensorflow::DT_STRING, shape);
    int64_t i = 0;
    for (const auto& [name, value] : settings) {
      agreed_names.flat<tstring>()(i) = name;
      agreed_values.flat<tstring>()(i++) = value;
    }
    ctx->set_output(0, agreed_names);
    ctx->set_output(1, agreed_values);
    return absl::OkStatus();
  }

 private:
  bool replace_;
};

class VerifyOp : public DiskStoreOp {
 public:
  using DiskStoreOp::DiskStoreOp;

 protected:
  absl::Status ApplyToDisk(OpKernelContext* ctx, SampleStore& store) override {
    const auto [right, wrong] = store.disk()->Verify();
    SetVectorOutput(ctx, {right, wrong});
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStoreHandle").Device(DEVICE_CPU), HandleOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStoreAgree").Device(DEVICE_CPU), AgreeOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStoreVerify").Device(DEVICE_CPU), VerifyOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStoreGet").Device(DEVICE_CPU), GetOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStorePut").Device(DEVICE_CPU), PutOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStoreRemove").Device(DEVICE_CPU), RemoveOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStoreContains").Device(DEVICE_CPU),
                        ContainsOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStoreClear").Device(DEVICE_CPU), ClearOp);
REGISTER_KERNEL_BUILDER(Name("RefurbishTf>CacheStoreStats").Device(DEVICE_CPU), StatsOp);

}  // namespace
}  // namespace refurbish_tf

// The ops of `CacheStore`, and an op that returns how much memory is left.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/memory.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"

namespace refurbish_tf {
namespace {

// Keeps a store alive from Python. It cannot be serialized: the ops find the
// store by its name.
struct StoreReference {
  std::shared_ptr<SampleStore> store;
  std::string TypeName() const { return "refurbish_tf::StoreReference"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
  std::string DebugString() const { return TypeName(); }
};

absl::StatusOr<std::shared_ptr<SampleStore>> ParseStore(OpKernelContext* ctx) {
  tstring id;
  TF_RETURN_IF_ERROR(ParseScalarArgument<tstring>(ctx, "store", &id));
  return SampleStore::Find(id);
}

absl::StatusOr<uint64_t> ParseIndex(OpKernelContext* ctx) {
  int64_t value = 0;
  TF_RETURN_IF_ERROR(ParseScalarArgument<int64_t>(ctx, "index", &value));
  if (value < 0) {
    return InvalidArgument("`index` must be at least 0, got ", value,
                           ". It is the position of the sample in the source.");
  }
  return value;
}

absl::Status MakeHandle(OpKernelContext* ctx) {
  std::string name, mode;
  int64_t max_bytes;
  TF_RETURN_IF_ERROR(
      GetScalars(ctx, "store", &name, "max_bytes", &max_bytes, "mode", &mode));
  if (max_bytes < 0 ||
      (mode != "open" && mode != "overwrite" && mode != "inspect")) {
    return InvalidArgument(
        "max_bytes must not be negative, and mode \"open\", \"overwrite\" or "
        "\"inspect\", got ",
        max_bytes, " and \"", mode, "\".");
  }
  TF_ASSIGN_OR_RETURN(std::shared_ptr<SampleStore> store,
                      SampleStore::GetOrCreate(name, max_bytes, mode));
  TF_RETURN_IF_ERROR(store->CheckDirectory());
  Tensor handle(tensorflow::DT_VARIANT, TensorShape({}));
  handle.scalar<tensorflow::Variant>()() = StoreReference{std::move(store)};
  ctx->set_output(0, handle);
  return absl::OkStatus();
}

absl::Status TellMemory(OpKernelContext* ctx) {
  SetMemoryRoot(ctx->input(0).scalar<tstring>()());
  const Memory memory = ReadMemory();
  ctx->set_output(0, Vector({memory.free, memory.reserve()}));
  return absl::OkStatus();
}

// An op on the store that its first input names.
using StoreFunction = absl::Status (*)(OpKernelContext* ctx,
                                       SampleStore& store);

template <StoreFunction kFunction>
absl::Status OnStore(OpKernelContext* ctx) {
  TF_ASSIGN_OR_RETURN(const auto store, ParseStore(ctx));
  return kFunction(ctx, *store);
}

template <StoreFunction kFunction>
using StoreOp = FunctionOp<OnStore<kFunction>>;

absl::Status OtherTypes(const Sample& sample, uint64_t index) {
  std::string found;
  for (const Tensor& tensor : sample) {
    absl::StrAppend(&found, " ", tensorflow::DataTypeString(tensor.dtype()),
                    tensor.shape().DebugString());
  }
  return InvalidArgument("The sample at index ", index,
                         " of the CacheStore has components", found,
                         ", which the store's element_spec does not allow.");
}

// A class, so that attributes are read once: `get` may run for each element.
class GetOp : public OpKernel {
 public:
  explicit GetOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetAttrs(ctx, "output_types", &types_.dtypes,
                                 "output_shapes", &types_.shapes));
    OP_REQUIRES(ctx, types_.shapes.size() == types_.dtypes.size(),
                InvalidArgument(
                    "output_shapes and output_types must match in number."));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_VALUE(const auto store, ctx, ParseStore(ctx));
    OP_REQUIRES_VALUE(const uint64_t index, ctx, ParseIndex(ctx));
    Sample sample;
    Generation generation;
    OP_REQUIRES(
        ctx, store->store().Get(index, {}, &sample, &generation),
        NotFound("There is no sample at index ", index, " of the CacheStore."));
    OP_REQUIRES(ctx, types_.Allow(sample), OtherTypes(sample, index));
    for (size_t i = 0; i < sample.size(); ++i) ctx->set_output(i, sample[i]);
  }

 private:
  SampleTypes types_;
};

absl::Status PutSample(OpKernelContext* ctx, SampleStore& store) {
  TF_ASSIGN_OR_RETURN(const uint64_t index, ParseIndex(ctx));
  tensorflow::OpInputList components;
  TF_RETURN_IF_ERROR(ctx->input_list("components", &components));
  return store.Put(index, Sample(components.begin(), components.end()));
}

absl::Status RemoveSample(OpKernelContext* ctx, SampleStore& store) {
  TF_ASSIGN_OR_RETURN(const uint64_t index, ParseIndex(ctx));
  ctx->set_output(0, Tensor(store.store().Remove(index, /*evict=*/false)));
  return absl::OkStatus();
}

absl::Status ContainsSample(OpKernelContext* ctx, SampleStore& store) {
  TF_ASSIGN_OR_RETURN(const uint64_t index, ParseIndex(ctx));
  ctx->set_output(
      0, Tensor(store.store().StoredGeneration(index) != kNoGeneration));
  return absl::OkStatus();
}

absl::Status ClearStore(OpKernelContext*, SampleStore& store) {
  store.store().Clear();
  return absl::OkStatus();
}

absl::Status StoreStats(OpKernelContext* ctx, SampleStore& store) {
  SetNamedRows(ctx, {store.Counts()});
  return absl::OkStatus();
}

absl::Status AgreeSettings(OpKernelContext* ctx, SampleStore& store) {
  bool replace = false;
  TF_RETURN_IF_ERROR(ParseScalarArgument<bool>(ctx, "replace", &replace));
  const auto names = ctx->input(1).flat<tstring>();
  const auto values = ctx->input(2).flat<tstring>();
  if (names.size() != values.size()) {
    return InvalidArgument("`values` must have one for each name.");
  }
  Settings settings;
  for (int64_t i = 0; i < names.size(); ++i) settings[names(i)] = values(i);
  const absl::StatusOr<Settings> agreed =
      store.cooperation().AgreeOn(settings, replace);
  // Every error gets this code, which Python turns into a ValueError.
  if (!agreed.ok()) {
    return FailedPrecondition(agreed.status().message());
  }
  const TensorShape shape({static_cast<int64_t>(agreed->size())});
  Tensor agreed_names(tensorflow::DT_STRING, shape);
  Tensor agreed_values(tensorflow::DT_STRING, shape);
  int64_t i = 0;
  for (const auto& [name, value] : *agreed) {
    agreed_names.flat<tstring>()(i) = name;
    agreed_values.flat<tstring>()(i++) = value;
  }
  ctx->set_output(0, agreed_names);
  ctx->set_output(1, agreed_values);
  return absl::OkStatus();
}

absl::Status VerifyStore(OpKernelContext* ctx, SampleStore& store) {
  TF_ASSIGN_OR_RETURN(const auto checked, store.Verify());
  ctx->set_output(0, Vector({checked.first, checked.second}));
  return absl::OkStatus();
}

absl::Status LivingJobs(OpKernelContext* ctx, SampleStore& store) {
  TF_ASSIGN_OR_RETURN(const std::vector<NamedNumbers> rows,
                      store.cooperation().LivingJobs());
  SetNamedRows(ctx, rows);
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("Memory", FunctionOp<TellMemory>);
REFURBISH_TF_KERNEL("CacheStoreHandle", FunctionOp<MakeHandle>);
REFURBISH_TF_KERNEL("CacheStoreAgree", StoreOp<AgreeSettings>);
REFURBISH_TF_KERNEL("CacheStoreVerify", StoreOp<VerifyStore>);
REFURBISH_TF_KERNEL("CacheStoreGet", GetOp);
REFURBISH_TF_KERNEL("CacheStorePut", StoreOp<PutSample>);
REFURBISH_TF_KERNEL("CacheStoreRemove", StoreOp<RemoveSample>);
REFURBISH_TF_KERNEL("CacheStoreContains", StoreOp<ContainsSample>);
REFURBISH_TF_KERNEL("CacheStoreClear", StoreOp<ClearStore>);
REFURBISH_TF_KERNEL("CacheStoreStats", StoreOp<StoreStats>);
REFURBISH_TF_KERNEL("CacheStoreJobs", StoreOp<LivingJobs>);

}  // namespace
}  // namespace refurbish_tf

#include "refurbish_tf/cc/kernels/source_checks/random_access.h"

#include <unordered_set>
#include <vector>

#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/op_lists.h"

namespace refurbish_tf {
namespace {

// `visited`: a dataset may be the input of several others, as in `zip`.
const DatasetBase* Find(const DatasetBase* dataset,
                        std::unordered_set<const DatasetBase*>* visited) {
  if (!visited->insert(dataset).second) return nullptr;
  std::vector<const DatasetBase*> inputs;
  if (!dataset->InputDatasets(&inputs).ok()) return dataset;
  for (const DatasetBase* input : inputs) {
    const DatasetBase* stream = Find(input, visited);
    if (stream != nullptr) return stream;
  }
  const bool has_access = HasTrait(dataset->type_string(), kByIndex) &&
                          dataset->RandomIndexingCompatible().ok() &&
                          dataset->Cardinality(CardinalityOptions()) >= 0;
  return has_access ? nullptr : dataset;
}

absl::Status TypeOfFirstStream(OpKernelContext* ctx) {
  DatasetBase* dataset = nullptr;
  TF_RETURN_IF_ERROR(
      tensorflow::data::GetDatasetFromVariantTensor(ctx->input(0), &dataset));
  const DatasetBase* stream = FirstStream(dataset);
  ctx->set_output(
      0, Tensor(tstring(stream == nullptr ? "" : stream->type_string())));
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("FirstStream", FunctionOp<TypeOfFirstStream>);

}  // namespace

const DatasetBase* FirstStream(const DatasetBase* dataset) {
  std::unordered_set<const DatasetBase*> visited;
  return Find(dataset, &visited);
}

}  // namespace refurbish_tf

// The records of TFRecord files, by index.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/sources/indexed_dataset.h"
#include "refurbish_tf/cc/kernels/sources/tensorflow_files.h"
#include "refurbish_tf/cc/sources/open_files.h"
#include "refurbish_tf/cc/sources/record_index.h"

namespace refurbish_tf {
namespace {

struct TfrecordArguments {
  std::vector<tstring> files;
  std::string index_dir;
  // The name of the index, the same in every copy of the dataset.
  std::string index;
  int64_t num_parallel_reads = 0;
};

class TfrecordDataset : public IndexedDataset {
 public:
  TfrecordDataset(OpKernelContext* ctx, TfrecordArguments arguments,
                  std::shared_ptr<const RecordIndex> index)
      : IndexedDataset(
            ctx, "Tfrecord", "rtf.sources.tfrecord", {DT_STRING},
            {PartialTensorShape({})},
            {index->num_records(), NumReads(arguments.num_parallel_reads)}),
        arguments_(std::move(arguments)),
        index_(std::move(index)) {}

  absl::Status ReadOne(int64_t index, int64_t since,
                       Components* element) const override {
    Tensor read(DT_STRING, TensorShape({}));
    tstring& text = read.scalar<tstring>()();
    const absl::Status status = ReadRecord(
        &OpenFiles::Global(), index_->At(index), since, [&text](size_t length) {
          text.resize_uninitialized(length);
          return text.mdata();
        });
    if (!status.ok()) return Printable(status);
    element->push_back(std::move(read));
    return absl::OkStatus();
  }

 protected:
  void WriteArguments(OpWriter* op) const override {
    op->Vector(arguments_.files)
        .Scalar(arguments_.index_dir)
        .Scalar(arguments_.index)
        .Scalar(arguments_.num_parallel_reads);
  }

 private:
  const TfrecordArguments arguments_;
  const std::shared_ptr<const RecordIndex> index_;
};

class TfrecordDatasetOp : public DatasetOpKernel {
 public:
  using DatasetOpKernel::DatasetOpKernel;

 protected:
  void MakeDataset(OpKernelContext* ctx, DatasetBase** output) override {
    TfrecordArguments arguments;
    OP_REQUIRES_OK(ctx, tensorflow::data::ParseVectorArgument<tstring>(
                            ctx, "files", &arguments.files));
    OP_REQUIRES_OK(ctx, GetScalars(ctx, "index_dir", &arguments.index_dir,
                                   "index", &arguments.index));
    OP_REQUIRES_OK(ctx, GetParallelReads(ctx, &arguments.num_parallel_reads));
    IndexOptions options;
    options.directory = arguments.index_dir;
    options.num_threads =
        static_cast<int>(NumReads(arguments.num_parallel_reads));
    options.access = AccessTo;
    absl::Status status;
    // A rewrite of the graph makes the dataset again, from the same files.
    std::shared_ptr<const RecordIndex> index =
        Registry<const RecordIndex>::Global().GetOrCreate(
            arguments.index, [&]() -> std::shared_ptr<const RecordIndex> {
              const std::vector<std::string> paths(arguments.files.begin(),
                                                   arguments.files.end());
              auto made = LoadOrMakeIndex(paths, options);
              if (!made.ok()) status = Printable(made.status());
              return made.ok() ? *std::move(made) : nullptr;
            });
    OP_REQUIRES_OK(ctx, status);
    *output = new TfrecordDataset(ctx, std::move(arguments), std::move(index));
  }
};

REFURBISH_TF_KERNEL("TfrecordDataset", TfrecordDatasetOp);

}  // namespace
}  // namespace refurbish_tf

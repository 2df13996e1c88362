#include "refurbish_tf/cc/kernels/source_checks/check_source.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/kernels/function_op.h"
#include "refurbish_tf/cc/kernels/op_lists.h"
#include "tensorflow/core/data/dataset_utils.h"
#include "tensorflow/core/data/serialization_utils.h"
#include "tensorflow/core/framework/dataset_options.pb.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace refurbish_tf {
namespace {

using tensorflow::FunctionDef;
using tensorflow::GraphDef;

bool IsTrue(const NodeDef& node, const std::string& attr) {
  const auto found = node.attr().find(attr);
  return found != node.attr().end() && found->second.b();
}

std::string Text(const NodeDef& node, const std::string& attr) {
  const auto found = node.attr().find(attr);
  return found == node.attr().end() ? "" : found->second.s();
}

constexpr char kDeterministicWayOut[] =
    "remove deterministic=False from the stages and options before refurbish "
    "and from the options of the whole pipeline, and write it where the order "
    "may change: as an argument of refurbish and of the stages after it";

bool AllowsReordering(const NodeDef& node) {
  if (node.op() != "OptionsDataset") return false;
  tensorflow::data::Options options;
  return options.ParseFromString(Text(node, "serialized_options")) &&
         options.optional_deterministic_case() ==
             tensorflow::data::Options::kDeterministic &&
         !options.deterministic();
}

// What was found in the graph of a source.
struct Contents {
  bool may_reorder = false;          // If deterministic=False.
  std::set<std::string> file_lists;  // Lists of names, as list_files makes.
  bool has_batches = false;
  bool reads_files = false;  // Whole files, such as images.
};

Contents FindContents(const std::vector<const NodeDef*>& nodes) {
  Contents contents;
  for (const NodeDef* node : nodes) {
    contents.may_reorder |= AllowsReordering(*node);
    if (IsTrue(*node, "is_files")) contents.file_lists.insert(node->name());
    contents.has_batches |= absl::StrContains(node->op(), "BatchDataset");
    contents.reads_files |= node->op() == "ReadFile";
  }
  return contents;
}

std::string NoShuffle(const NodeDef& shuffle, const Contents& contents) {
  // In a function an input is written as "node:output".
  const std::string& input = shuffle.input(0);
  if (contents.file_lists.count(input.substr(0, input.find(':'))) > 0) {
    return "write list_files(..., shuffle=False) and no shuffle after it, "
           "because refurbish itself shuffles in every epoch; with TFDS, "
           "shuffle_files=False";
  }
  std::string way_out = absl::StrCat(
      contents.has_batches ? "leave shuffle and batch out"
                           : "leave the shuffle out",
      ", because refurbish itself shuffles in every epoch, put ",
      contents.has_batches ? "them" : "it",
      " after refurbish, or write reshuffle_each_iteration=False; with TFDS, "
      "shuffle_files=False");
  if (contents.has_batches || contents.reads_files) {
    absl::StrAppend(
        &way_out,
        ". If the source is keras.utils.image_dataset_from_directory, use "
        "rtf.sources.image_folder, which has the same classes and the same "
        "split. Without validation_split, shuffle=False, batch_size=None also "
        "works; with it Keras would split by class");
  }
  return way_out;
}

// Why `node` changes its order, and what to do about it; empty if it does not.
std::pair<std::string, std::string> Reason(const NodeDef& node,
                                           const Contents& contents) {
  const absl::string_view op = node.op();
  if ((absl::StartsWith(op, "ShuffleDataset") ||
       absl::StartsWith(op, "GlobalShuffleDataset") ||
       absl::StartsWith(op, "ShuffleAndRepeatDataset")) &&
      IsTrue(node, "reshuffle_each_iteration")) {
    return {absl::StrCat(op, " with reshuffle_each_iteration, the default"),
            NoShuffle(node, contents)};
  }
  if (absl::StartsWith(op, "DataServiceDataset")) {
    return {"a tf.data service",
            "put refurbish before distribute, so that each worker of the "
            "service reuses its own samples"};
  }
  if (op == "RefurbishTf>RefurbishDataset") {
    return {"a refurbish stage",
            "put both partial augmentations into one partial_fn"};
  }
  if (op == "RefurbishTf>AdaptiveEchoDataset") {
    return {"echo(e=AUTOTUNE), which repeats depending on timing",
            "put it after refurbish, or give echo a number"};
  }
  if (op == "RandomDatasetV2" && IsTrue(node, "rerandomize_each_iteration")) {
    return {"random numbers with rerandomize_each_iteration",
            "write rerandomize_each_iteration=False and a seed"};
  }
  const bool is_augment = absl::StartsWith(op, "RefurbishTf>Augment");
  if (is_augment || absl::StrContains(op, "Parallel")) {
    const std::string deterministic = Text(node, "deterministic");
    if (deterministic == "false" ||
        ((is_augment || deterministic == "default") && contents.may_reorder) ||
        IsTrue(node, "sloppy")) {
      return {absl::StrCat(op, " with deterministic=False"),
              kDeterministicWayOut};
    }
  }
  return {};
}

// Whether `dataset` has no end. If it drops or multiplies elements, its
// cardinality is unknown, but it is infinite if its input is.
bool IsInfinite(const DatasetBase* dataset) {
  const int64_t cardinality = dataset->Cardinality(CardinalityOptions());
  if (cardinality != tensorflow::data::kUnknownCardinality) {
    return cardinality == tensorflow::data::kInfiniteCardinality;
  }
  std::vector<const DatasetBase*> inputs;
  if (!HasTrait(dataset->type_string(), kEndsWithInput) ||
      !dataset->InputDatasets(&inputs).ok()) {
    return false;
  }
  return std::any_of(inputs.begin(), inputs.end(), IsInfinite);
}

int64_t KnownCardinality(const DatasetBase* source) {
  const int64_t cardinality = source->Cardinality(CardinalityOptions());
  return cardinality < 0 ? kUnknownSamples : cardinality;
}

SourceKind KindOf(const NodeDef& node) {
  const std::string& op = node.op();
  if (DrawsAnew(op)) return SourceKind::kDraws;
  if (CallsPython(op) || !AlwaysDoesTheSame(op)) return SourceKind::kMayChange;
  return YieldsWhatIsInGraph(op) ? SourceKind::kInGraph : SourceKind::kRepeats;
}

using Functions = std::unordered_map<std::string, const FunctionDef*>;

// Adds an operation or a function, and what the function calls. The functions
// of a dataset are checked separately.
void AddCalled(const Functions& functions, const std::string& name,
               std::set<std::string>* called) {
  const auto function = functions.find(name);
  if (!called->insert(name).second || function == functions.end()) return;
  for (const NodeDef& node : function->second->node_def()) {
    AddCalled(functions, node.op(), called);
    if (absl::StrContains(node.op(), "Dataset")) continue;
    for (const auto& [attr, value] : node.attr()) {
      AddCalled(functions, value.func().name(), called);
    }
  }
}

// Like `Reason`, for shuffles in functions. `nodes` include those of functions.
std::pair<std::string, std::string> ReasonInFunction(
    const GraphDef& graph, const std::vector<const NodeDef*>& nodes) {
  if (std::none_of(nodes.begin(), nodes.end(), [](const NodeDef* node) {
        return node->op() == "RandomIndexShuffle" ||
               node->op() == "RandomShuffle";
      })) {
    return {};
  }
  Functions functions;
  for (const FunctionDef& function : graph.library().function()) {
    functions[function.signature().name()] = &function;
  }
  for (const auto& [name, function] : functions) {
    std::set<std::string> called;
    AddCalled(functions, name, &called);
    // Hugging Face's `to_tf_dataset(shuffle=True)` draws a seed in each epoch.
    if (called.count("RandomIndexShuffle") > 0 &&
        std::any_of(called.begin(), called.end(), DrawsAnew)) {
      return {
          "an index_shuffle with a seed that is drawn in each epoch",
          "leave the shuffle out, because refurbish itself shuffles in every "
          "epoch: with Hugging Face, use to_tf_dataset(shuffle=False). Or "
          "give index_shuffle a constant seed"};
    }
    // Only a function that makes a dataset, such as that of `flat_map`, changes
    // the order. Others may shuffle the content of an element.
    const auto& outputs = function->signature().output_arg();
    const bool makes_dataset =
        std::any_of(outputs.begin(), outputs.end(), [](const auto& output) {
          return output.type() == tensorflow::DT_VARIANT;
        });
    if (makes_dataset && called.count("RandomShuffle") > 0) {
      return {
          "tf.random.shuffle in a function that returns a dataset",
          "leave the shuffle out, because refurbish itself shuffles in every "
          "epoch. A stateless shuffle with a fixed seed, such as "
          "tf.random.experimental.stateless_shuffle, may stay"};
    }
  }
  return {};
}

// Whether the node's floating-point results may differ on another machine.
bool ComputesFloats(const NodeDef& node) {
  if (absl::StrContains(node.op(), "Dataset") || node.op() == "Const" ||
      node.op() == "Identity") {
    return false;
  }
  const auto is_float = [](int type) {
    const auto dtype = static_cast<tensorflow::DataType>(type);
    return tensorflow::DataTypeIsFloating(dtype) ||
           tensorflow::DataTypeIsComplex(dtype);
  };
  return std::any_of(node.attr().begin(), node.attr().end(),
                     [&](const auto& attr) {
                       const auto& types = attr.second.list().type();
                       return is_float(attr.second.type()) ||
                              std::any_of(types.begin(), types.end(), is_float);
                     });
}

// The `shard` whose elements become those of `source`, one for one, or null.
const DatasetBase* ShardOf(const DatasetBase* source) {
  while (source->type_string() != "ShardDataset") {
    std::vector<const DatasetBase*> inputs;
    if (!HasTrait(source->type_string(), kOneOfEach) ||
        !source->InputDatasets(&inputs).ok() || inputs.size() != 1) {
      return nullptr;
    }
    source = inputs.front();
  }
  return source;
}

void FindShards(const GraphDef& graph, const DatasetBase* source,
                SourceFacts* facts) {
  std::unordered_map<std::string, const NodeDef*> nodes;
  for (const NodeDef& node : graph.node()) nodes[node.name()] = &node;
  const auto value = [&nodes](const NodeDef& node, int input) -> int64_t {
    Tensor tensor;
    const auto found = nodes.find(node.input(input));
    if (found == nodes.end() || found->second->op() != "Const" ||
        !tensor.FromProto(found->second->attr().at("value").tensor())) {
      return 0;
    }
    return tensor.scalar<int64_t>()();
  };
  SourceShard& shard = facts->shard;
  std::multiset<std::string> names;
  int64_t index = 0;
  int num_datasets = 0;
  for (const NodeDef& node : graph.node()) {
    if (node.op() != "ShardDataset") continue;
    ++num_datasets;
    const int64_t num_shards = value(node, 1);
    facts->hinted |= num_shards == tensorflow::data::kShardHint;
    // `shard(1, 0)` is the whole source, and tf.data removes it.
    if (num_shards == 1) continue;
    index = value(node, 2);
    // The product is capped, so it cannot overflow.
    constexpr int64_t kMost = kMaxSamples;
    shard.num_shards =
        num_shards > kMost / std::max<int64_t>(1, shard.num_shards)
            ? kMost
            : shard.num_shards * num_shards;
    names.insert(absl::StrCat(index, " of ", num_shards));
  }
  if (facts->hinted) return;
  shard.names = absl::StrJoin(names, ", ");
  if (names.empty()) {
    shard.whole = KnownCardinality(source);
    return;
  }
  shard.shard.reset();
  const DatasetBase* const dataset = ShardOf(source);
  std::vector<const DatasetBase*> inputs;
  // If there are several `shard`s, `dataset` may be one that divides nothing.
  if (num_datasets > 1 || dataset == nullptr || index < 0 ||
      index >= shard.num_shards || shard.num_shards > kMaxShards ||
      !dataset->InputDatasets(&inputs).ok()) {
    return;
  }
  shard.shard = Shard{static_cast<uint32_t>(index),
                      static_cast<uint32_t>(shard.num_shards)};
  shard.whole = KnownCardinality(inputs.front());
}

absl::Status CheckLength(const DatasetBase* source, const char* method) {
  if (IsInfinite(source)) {
    return InvalidArgument(
        "The source of ", method,
        " is infinite, so it has no epochs. Put .repeat() after ", method,
        ", or .take(n) before it. TensorFlow also treats "
        "sample_from_datasets(..., stop_on_empty_dataset=True) as infinite: "
        "put .take(n) after it, with the number of its elements.");
  }
  if (source->Cardinality(CardinalityOptions()) == 0) {
    return InvalidArgument("The source of ", method,
                           " has no elements. Check its file names, "
                           "filters and splits.");
  }
  return absl::OkStatus();
}

// `visited`: a dataset may be the input of several others, as in `zip`.
const DatasetBase* FindStream(const DatasetBase* dataset,
                              std::unordered_set<const DatasetBase*>* visited) {
  if (!visited->insert(dataset).second) return nullptr;
  std::vector<const DatasetBase*> inputs;
  if (!dataset->InputDatasets(&inputs).ok()) return dataset;
  for (const DatasetBase* input : inputs) {
    const DatasetBase* stream = FindStream(input, visited);
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

absl::Status CheckSource(OpKernelContext* ctx, const DatasetBase* source,
                         const char* method, SourceFacts* facts) {
  // The graph is made as for a rewrite, which copies no data into it.
  std::vector<std::pair<std::string, Tensor>> tensors;
  GraphDef graph;
  std::string output_node;
  if (!tensorflow::data::AsGraphDefForRewrite(ctx, source, &tensors, &graph,
                                              &output_node)
           .ok()) {
    return CheckLength(source, method);
  }
  FindShards(graph, source, facts);
  if (!facts->hinted) TF_RETURN_IF_ERROR(CheckLength(source, method));
  std::vector<const NodeDef*> nodes;
  for (const NodeDef& node : graph.node()) nodes.push_back(&node);
  for (const auto& function : graph.library().function()) {
    for (const NodeDef& node : function.node_def()) nodes.push_back(&node);
  }
  const Contents contents = FindContents(nodes);
  std::pair<std::string, std::string> reason;
  for (const NodeDef* node : nodes) {
    if (reason.first.empty()) reason = Reason(*node, contents);
  }
  if (reason.first.empty()) reason = ReasonInFunction(graph, nodes);
  if (!reason.first.empty()) {
    return InvalidArgument("The source of ", method,
                           " changes its order from epoch to epoch (",
                           reason.first, "), but ", method,
                           " identifies a sample by its position. To fix it, ",
                           reason.second, ".");
  }
  facts->kind = SourceKind::kInGraph;
  for (const NodeDef* node : nodes) {
    if (absl::StartsWith(node->op(), "RefurbishTf>") &&
        absl::EndsWith(node->op(), "Dataset") &&
        !HasTrait(node->op(), kListed)) {
      return Internal("op_lists.cc must list ", node->op(), ".");
    }
    facts->kind = std::max(facts->kind, KindOf(*node));
  }
  facts->computes_floats =
      std::any_of(nodes.begin(), nodes.end(),
                  [](const NodeDef* node) { return ComputesFloats(*node); });
  return absl::OkStatus();
}

const DatasetBase* FirstStream(const DatasetBase* dataset) {
  std::unordered_set<const DatasetBase*> visited;
  return FindStream(dataset, &visited);
}

}  // namespace refurbish_tf

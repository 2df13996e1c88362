// Whether a function of a source draws the order of its elements.
#pragma once

#include "tensorflow/core/framework/graph.pb.h"

namespace refurbish_tf {

// Whether a seed of `tf.random.experimental.index_shuffle` is drawn, as
// `to_tf_dataset(shuffle=True)` of Hugging Face does in each epoch.
bool DrawsSeedOfIndexShuffle(const tensorflow::GraphDef& graph);

}  // namespace refurbish_tf

// TensorFlow's names that several kernels use, and the includes for them.
#pragma once

#include "refurbish_tf/cc/base/status_macros.h"
#include "tensorflow/core/data/captured_function.h"
#include "tensorflow/core/data/name_utils.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/model.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/op_requires.h"

namespace refurbish_tf {

namespace model = tensorflow::data::model;
namespace name_utils = tensorflow::data::name_utils;

using tensorflow::AttrValue;
using tensorflow::CancellationManager;
using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::DataTypeVector;
using tensorflow::DT_INT64;
using tensorflow::DT_STRING;
using tensorflow::NameAttrList;
using tensorflow::Node;
using tensorflow::NodeDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Thread;
using tensorflow::tstring;
using tensorflow::data::AnyContext;
using tensorflow::data::CapturedFunction;
using tensorflow::data::CardinalityOptions;
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetContext;
using tensorflow::data::DatasetIterator;
using tensorflow::data::DatasetOpKernel;
using tensorflow::data::FunctionMetadata;
using tensorflow::data::IndexMapperFn;
using tensorflow::data::InstantiateCapturedFunctionParams;
using tensorflow::data::InstantiatedCapturedFunction;
using tensorflow::data::IteratorBase;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::kUnknownCardinality;
using tensorflow::data::MemoryCheckpoint;
using tensorflow::data::ParseScalarArgument;
using tensorflow::data::SerializationContext;
using tensorflow::data::SplitProvider;
using tensorflow::data::UnaryDatasetOpKernel;

}  // namespace refurbish_tf

#define REFURBISH_TF_KERNEL(op, ...) \
  REGISTER_KERNEL_BUILDER(           \
      Name("RefurbishTf>" op).Device(::tensorflow::DEVICE_CPU), __VA_ARGS__)

"""Reads and edits the state that tf.data saves for a stage in the checkpoint of an iterator."""

from google.protobuf.internal import decoder
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.framework import tensor_shape_pb2
from tensorflow.python.ops import gen_dataset_ops

STAGE = "Refurbish"
TYPES = {
  "stage": tf.string,
  "reuse_factor": tf.float64,
  "yielded": tf.uint8,
  "yielded_since": tf.uint32,
  "yielded_last": tf.uint32,
}


class State:
  """The entries of an iterator's checkpoint that tf.data saves for the stage `kind`, by key, to be read and edited."""

  def __init__(self, serialized, kind=STAGE, types=None):
    proto = tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(serialized).numpy())
    # All lengths precede the messages.
    lengths, position = [], 0
    for _ in range(int(serialized.shape[0])):
      length, position = decoder._DecodeVarint(proto.tensor_content, position)
      lengths.append(length)
    self._variants = []
    for length in lengths:
      self._variants.append(
        tensor_pb2.VariantTensorDataProto.FromString(proto.tensor_content[position : position + length])
      )
      position += length
    types = TYPES if types is None else types
    (self._stage,) = (variant for variant in self._variants if variant.metadata.split(b"@@")[0].decode().endswith(kind))
    self._prefix, *keys = self._stage.metadata.decode().split("@@")
    compressed = tf.io.parse_tensor(
      _proto_of_variants([self._stage.tensors[0].variant_val[0]], []).SerializeToString(), tf.variant
    )
    values = tf.raw_ops.UncompressElement(
      compressed=compressed,
      output_types=[types.get(key, tf.int64) for key in keys],
      output_shapes=[tf.TensorShape(None)] * len(keys),
    )
    self.values = {key: value.numpy() for key, value in zip(keys, values)}

  def serialized(self):
    self._stage.metadata = "@@".join([self._prefix, *self.values]).encode()
    del self._stage.tensors[:]
    self._stage.tensors.extend(tf.make_tensor_proto(value) for value in self.values.values())
    return tf.io.parse_tensor(_proto_of_variants(self._variants, [len(self._variants)]).SerializeToString(), tf.variant)


def _proto_of_variants(variants, shape):
  dims = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in shape]
  return tensor_pb2.TensorProto(
    dtype=tf.variant.as_datatype_enum, tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=dims), variant_val=variants
  )


def state_of(iterator, *kind):
  return State(gen_dataset_ops.serialize_iterator(iterator._iterator_resource, external_state_policy=1), *kind)


def set_state(iterator, state):
  gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, state.serialized())

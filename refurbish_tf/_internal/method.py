"""Methods of `tf.data.Dataset` made from the transformations that `Dataset.apply` takes."""

import functools
import inspect


def as_method(transformation):
  """The method `dataset.f(...)`, which calls `dataset.apply(f(...))`, with the signature and the docstring of `f`."""

  @functools.wraps(transformation)
  def method(self, *args, **keywords):
    return transformation(*args, **keywords)(self)

  dataset = "tf.data.Dataset[Any]"
  signature = inspect.signature(transformation)
  self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=dataset)
  parameters = [self, *signature.parameters.values()]
  method.__signature__ = signature.replace(parameters=parameters, return_annotation=dataset)
  method.__annotations__ = {"self": dataset, **transformation.__annotations__, "return": dataset}
  method.__qualname__ = f"Dataset.{transformation.__name__}"
  return method

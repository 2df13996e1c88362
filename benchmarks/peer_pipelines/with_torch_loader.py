"""`refurbish`, as in with_refurbish.py, through `rtf.torch_loader`: batches of PyTorch."""
import functools

import epochs
import refurbish_tf as rtf
import with_refurbish

if __name__ == "__main__":
  epochs.serve(
      **{kind: functools.partial(getattr(with_refurbish, kind), read=rtf.torch_loader) for kind in ("small", "large")})

#include "refurbish_tf/cc/plan/policies.h"

#include <cmath>
#include <cstdlib>

namespace refurbish_tf {
namespace {

__extension__ typedef unsigned __int128 Wide;

}  // namespace

EvictionHand HandAfter(Eviction policy, uint64_t count, uint64_t length,
                       double reuse_factor) {
  switch (policy) {
    case Eviction::kReferenceCount:
      return {EvictionsUntil(count, 1, reuse_factor), 0};
    case Eviction::kBalanced: {
      if (length == 0) return {};
      const uint64_t evictions = EvictionsUntil(count, length, reuse_factor);
      return {evictions / length, static_cast<uint32_t>(evictions % length)};
    }
  }
  // Unreachable: the compiler warns about a policy without a case.
  std::abort();
}

uint64_t EvictionsUntil(uint64_t count, uint64_t samples, double reuse_factor) {
  // A double is a whole number times a power of two, so the quotient can be
  // computed in integers. In floating point it would sometimes be rounded
  // across a whole number, and a sample would be used once too often.
  int exponent;
  const double fraction = std::frexp(reuse_factor, &exponent);
  const uint64_t mantissa = static_cast<uint64_t>(std::ldexp(fraction, 53));
  const int shift = 53 - exponent;
  const Wide product = static_cast<Wide>(count) * samples;
  if (shift >= 0) return static_cast<uint64_t>((product << shift) / mantissa);
  if (shift <= -127) return 0;
  return static_cast<uint64_t>((product >> -shift) / mantissa);
}

}  // namespace refurbish_tf

// Elementary functions for results that must be the same bytes everywhere. C
// libraries differ in the last digits, while every CPU rounds the operations
// used here in the same way. The error is about one unit in the last place.
#pragma once

#include <cmath>

namespace refurbish_tf {

inline constexpr double kLog2E = 1.4426950408889634;

// `x` must be above 0.
inline double Log2(double x) {
  int scale;
  double mantissa = std::frexp(x, &scale);
  if (mantissa < 0.7) {  // Makes Log2(1) exactly 0.
    mantissa *= 2;
    --scale;
  }
  // log(mantissa) = 2 artanh(z), with z from -0.18 to 0.17.
  const double z = (mantissa - 1) / (mantissa + 1);
  double series = 0;
  for (int k = 21; k > 0; k -= 2) series = series * (z * z) + 1.0 / k;
  return scale + 2 * z * series * kLog2E;
}

// Results below 2^-1000 are 0.
inline double Exp2(double x) {
  if (x < -1000) return 0;
  const double whole = std::floor(x + 0.5);
  constexpr double kLn2 = 0.6931471805599453;
  const double rest = (x - whole) * kLn2;
  double power = 1;
  for (int k = 14; k > 0; --k) power = 1 + power * (rest * (1.0 / k));
  return std::ldexp(power, static_cast<int>(whole));
}

inline double Exp(double x) { return Exp2(x * kLog2E); }

struct SineCosine {
  double sine, cosine;
};
// Valid up to a thousand radians. keras/offloaded_rows.py repeats this code.
inline SineCosine SineCosineOf(double radians) {
  // The sum is half of pi. kQuarterTurn has 33 bits: small multiples are exact.
  constexpr double kQuarterTurn = 0x1.921fb544p+0,
                   kRest = 0x1.0b4611a626331p-34;
  const double quarters = std::floor(radians / kQuarterTurn + 0.5);
  const double x = (radians - quarters * kQuarterTurn) - quarters * kRest;
  double sine = 1, cosine = 1;
  for (int k = 17; k > 3; k -= 2) sine = 1 - sine * (x * x) / (k * (k - 1));
  for (int k = 16; k > 0; k -= 2) cosine = 1 - cosine * (x * x) / (k * (k - 1));
  sine = x - x * (sine * (x * x) / 6);
  const double turned[] = {sine, cosine, -sine, -cosine};
  const int quarter = static_cast<int>(quarters);
  return {turned[quarter & 3], turned[(quarter + 1) & 3]};
}

}  // namespace refurbish_tf

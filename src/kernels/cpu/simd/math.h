// Vector exp, sigmoid and softplus. Tails use the same instructions, so a result does not depend on
// the lane.
#pragma once

namespace switchyard::kernels::cpu::simd {

// e^x within 2 ulp; 0 below -87.3 (where float32 becomes subnormal). Large inputs saturate near
// 2.4e38 instead of overflowing. NaN stays NaN. Method: x = n · ln 2 + r with |r| <= ln 2 / 2. ln 2
// is subtracted in two parts (Cody and Waite). e^r is the Taylor polynomial of degree 7, whose
// first omitted term is below 2^-27.
template <class V>
typename V::F Exp(typename V::F x) {
  const auto lowest = V::Set1(-87.3f);
  const auto clamped = V::Min(V::Set1(88.3f), V::Max(lowest, x));
  const auto n = V::RoundToInt(V::Mul(clamped, V::Set1(1.44269504f)));
  auto r = V::Fma(n, V::Set1(-0.693359375f), clamped);
  r = V::Fma(n, V::Set1(2.12194440e-4f), r);
  auto p = V::Set1(1.0f / 5040);
  p = V::Fma(p, r, V::Set1(1.0f / 720));
  p = V::Fma(p, r, V::Set1(1.0f / 120));
  p = V::Fma(p, r, V::Set1(1.0f / 24));
  p = V::Fma(p, r, V::Set1(1.0f / 6));
  p = V::Fma(p, r, V::Set1(0.5f));
  p = V::Fma(p, r, V::Set1(1.0f));
  p = V::Fma(p, r, V::Set1(1.0f));
  return V::ZeroBelow(V::ScaleByPower(p, n), x, lowest);
}

template <class V>
typename V::F Sigmoid(typename V::F x) {
  const auto one = V::Set1(1.0f);
  return V::Div(one, V::Add(one, Exp<V>(V::Sub(V::Zero(), x))));
}

// log(1 + e^x) within a few ulp, also where e^x is small. NaN stays NaN. Method: max(x, 0) +
// log(1 + t) with t = e^−|x|. With s = t / (2 + t) <= 1/3, log(1 + t) = 2 · atanh(s). The first
// omitted term of the series is below 2^-29 of the sum.
template <class V>
typename V::F SoftPlus(typename V::F x) {
  const auto t = Exp<V>(V::Min(x, V::Sub(V::Zero(), x)));
  const auto s = V::Div(t, V::Add(V::Set1(2.0f), t));
  const auto square = V::Mul(s, s);
  auto p = V::Set1(1.0f / 15);
  p = V::Fma(p, square, V::Set1(1.0f / 13));
  p = V::Fma(p, square, V::Set1(1.0f / 11));
  p = V::Fma(p, square, V::Set1(1.0f / 9));
  p = V::Fma(p, square, V::Set1(1.0f / 7));
  p = V::Fma(p, square, V::Set1(1.0f / 5));
  p = V::Fma(p, square, V::Set1(1.0f / 3));
  p = V::Fma(p, square, V::Set1(1.0f));
  return V::Fma(V::Add(s, s), p, V::Max(V::Zero(), x));
}

}  // namespace switchyard::kernels::cpu::simd

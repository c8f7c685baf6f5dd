#include <cmath>
#include <cstdlib>

#include "text/jinja/context.h"
#include "text/jinja/operators.h"

namespace switchyard::jinja {
namespace {

// Limit of integers, so that the sum of two of them does not overflow Int.
constexpr Int kLimit = Int{1} << 120;

Value Checked(Int value) {
  if (value > kLimit || value < -kLimit) Fail("integer too large");
  return Value::Integer(value);
}

Int Multiply(Int a, Int b) {
  using Unsigned = unsigned __int128;
  Unsigned x = static_cast<Unsigned>(a < 0 ? -a : a);
  Unsigned y = static_cast<Unsigned>(b < 0 ? -b : b);
  if (x != 0 && y > static_cast<Unsigned>(kLimit) / x) Fail("integer too large");
  auto product = static_cast<Int>(x * y);
  return (a < 0) != (b < 0) ? -product : product;
}

// Rounds towards minus infinity, as Python does.
Int FloorDivide(Int a, Int b) {
  Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value Power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) Fail("0.0 cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Int result = 1;
  if (base == 0 || base == 1) return Value::Integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::Integer(exponent % 2 == 0 ? 1 : -1);
  if (exponent > 120) Fail("integer too large");
  for (Int i = 0; i < exponent; ++i) result = Multiply(result, base);
  return Value::Integer(result);
}

Value ComputeIntegers(BinaryOp op, Int a, Int b) {
  bool divides = op == BinaryOp::kDivide || op == BinaryOp::kFloorDivide || op == BinaryOp::kModulo;
  if (divides && b == 0) {
    Fail("{}", op == BinaryOp::kDivide ? "division by zero" : "integer division or modulo by zero");
  }
  switch (op) {
    case BinaryOp::kAdd:
      return Checked(a + b);
    case BinaryOp::kSubtract:
      return Checked(a - b);
    case BinaryOp::kMultiply:
      return Checked(Multiply(a, b));
    case BinaryOp::kDivide:
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::kFloorDivide:
      return Value::Integer(FloorDivide(a, b));
    case BinaryOp::kModulo:
      return Value::Integer(a - FloorDivide(a, b) * b);
    case BinaryOp::kPower:
      break;
  }
  return Power(a, b);
}

// Quotient and remainder of a floored division, computed with C's fmod as in CPython. The remainder
// has the sign of the divisor.
struct FloatDivision {
  double quotient, remainder;
};

FloatDivision DivideFloats(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder == 0) {
    remainder = std::copysign(0.0, b);
  } else if ((b < 0) != (remainder < 0)) {
    remainder += b;
    quotient -= 1;
  }
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  if (quotient == 0) floored = std::copysign(0.0, a / b);
  return {floored, remainder};
}

Value ComputeFloats(BinaryOp op, double a, double b) {
  bool divides = op == BinaryOp::kDivide || op == BinaryOp::kFloorDivide || op == BinaryOp::kModulo;
  if (divides && b == 0) {
    if (op == BinaryOp::kDivide) Fail("float division by zero");
    Fail("{}", op == BinaryOp::kModulo ? "float modulo" : "float floor division by zero");
  }
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSubtract:
      return Value::Float(a - b);
    case BinaryOp::kMultiply:
      return Value::Float(a * b);
    case BinaryOp::kDivide:
      return Value::Float(a / b);
    case BinaryOp::kFloorDivide:
      return Value::Float(DivideFloats(a, b).quotient);
    case BinaryOp::kModulo:
      return Value::Float(DivideFloats(a, b).remainder);
    case BinaryOp::kPower:
      break;
  }
  if (a == 0 && b < 0) Fail("0.0 cannot be raised to a negative power");
  double power = std::pow(a, b);
  if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) Fail("the result is a complex number");
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b))
    Fail("Numerical result out of range");
  return Value::Float(power);
}

}  // namespace

Value Compute(BinaryOp op, const Value& a, const Value& b) {
  if (a.IsFloat() || b.IsFloat()) return ComputeFloats(op, a.AsDouble(), b.AsDouble());
  return ComputeIntegers(op, a.integer(), b.integer());
}

double RoundHalfEven(double value, int digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < -300) return 0;
  if (digits >= 0) {
    // printf rounds the exact binary value, as Python's round() does.
    return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
  }
  double scale = std::pow(10.0, -digits);
  return std::nearbyint(value / scale) * scale;
}

}  // namespace switchyard::jinja

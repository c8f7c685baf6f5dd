// Limits the compilation of a grammar by XGrammar, and collects XGrammar's messages.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace switchyard {

// During its lifetime, the object limits compilations on the thread that constructed it. XGrammar
// calls SpendCompileBudget with the size of each token mask. Beyond a limit, this call throws Error
// kInvalid, which ends the compilation. Also records XGrammar's warnings: each one means that
// XGrammar would ignore a part of the grammar.
class CompileBudget {
 public:
  CompileBudget(std::chrono::milliseconds time, size_t mask_bytes);
  ~CompileBudget();
  CompileBudget(const CompileBudget&) = delete;
  CompileBudget& operator=(const CompileBudget&) = delete;

  void Spend(size_t bytes);
  void Warn(const std::string& message);
  // Throws Error kInvalid with the first warning, if there is one.
  void CheckWarnings() const;

  static CompileBudget* Current();  // the budget of the calling thread, or null

 private:
  const std::chrono::milliseconds time_;
  const std::chrono::steady_clock::time_point deadline_;
  const size_t mask_bytes_;
  size_t spent_ = 0;
  std::string warning_;
  CompileBudget* const outer_;
};

}  // namespace switchyard

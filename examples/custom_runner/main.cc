// The complete Switchyard program with an additional runner.
#include "apps/main.h"

#include "my_backends.h"

int main(int argc, char** argv) {
  return switchyard::Main(argc, argv, [](switchyard::MoeBackends& backends) {
    AddPlainMlp(backends);
#ifdef WITH_CUDA
    AddGpuPlainMlp(backends);
#endif
  });
}

// The complete Switchyard program with additional runners and a dispatcher.
#include "apps/main.h"

#include "my_backends.h"

int main(int argc, char** argv) {
  return switchyard::Main(argc, argv, [](switchyard::MoeBackends& backends) {
    AddPlainMlp(backends);
#ifdef WITH_CUDA
    AddGpuPlainMlp(backends);
#endif
    AddMailbox(backends);
  });
}

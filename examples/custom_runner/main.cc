// The complete Switchyard program with an additional runner and dispatcher.
#include "apps/main.h"

#include "my_backends.h"

int main(int argc, char** argv) {
  return switchyard::Main(argc, argv, [](switchyard::MoeBackends& backends) {
    AddPlainMlp(backends);
    AddMailbox(backends);
  });
}

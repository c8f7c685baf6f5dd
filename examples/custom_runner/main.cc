// All of Switchyard, with a runner and a dispatcher more.
#include "apps/main.h"

#include "my_backends.h"

int main(int argc, char** argv) {
  return switchyard::Main(argc, argv, [](switchyard::MoeBackends& backends) {
    AddPlainMlp(backends);
    AddMailbox(backends);
  });
}

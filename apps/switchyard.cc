// The program.
#include "apps/main.h"

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }

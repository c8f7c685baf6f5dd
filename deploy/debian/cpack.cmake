# Configuration of cpack for the Debian package; scripts/package calls it with these environment variables:
# SWITCHYARD_PACKAGE (switchyard or switchyard-dev), SWITCHYARD_ROOT (the sources), SWITCHYARD_STAGE (the installed files,
# below /), SWITCHYARD_VERSION, SWITCHYARD_DEV_DEPENDS (packages that switchyard-dev needs, separated by commas).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME $ENV{SWITCHYARD_PACKAGE})
set(CPACK_PACKAGE_VERSION $ENV{SWITCHYARD_VERSION})
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_PACKAGE_FILE_NAME $ENV{SWITCHYARD_PACKAGE})  # not used: the name below is that of Debian
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGE_VENDOR Switchyard)
set(CPACK_PACKAGE_CONTACT "The Switchyard authors <switchyard@example.org>")
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
if(CPACK_PACKAGE_NAME STREQUAL switchyard)
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Server for Mixture-of-Experts language models")
  set(CPACK_PACKAGE_DESCRIPTION
    "Switchyard serves and trains Mixture-of-Experts language models with expert\nparallelism, on CPUs and NVIDIA GPUs. It has the HTTP APIs of OpenAI, Anthropic\nand SGLang. The package contains a systemd unit and a small model.")
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  # Dependencies of the program: dpkg-shlibdeps finds the packages of its libraries.
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "curl, openmpi-bin")
  set(control $ENV{SWITCHYARD_ROOT}/deploy/debian)
  set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${control}/conffiles;${control}/postinst;${control}/prerm;${control}/postrm")
else()
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Library for Mixture-of-Experts language models (development)")
  set(CPACK_PACKAGE_DESCRIPTION
    "Static libraries, headers and the CMake package of Switchyard, which serves and\ntrains Mixture-of-Experts language models with expert parallelism.")
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  # The exported targets refer to the program too, and the objects of another version may differ from the headers.
  set(CPACK_DEBIAN_PACKAGE_DEPENDS
    "switchyard (= ${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}), pkg-config, $ENV{SWITCHYARD_DEV_DEPENDS}")
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake, g++, ninja-build")
endif()
# The stage has the paths of the system, so nothing is put before them.
set(CPACK_INSTALLED_DIRECTORIES "$ENV{SWITCHYARD_STAGE};.")
set(CPACK_PACKAGING_INSTALL_PREFIX /)
set(CPACK_SET_DESTDIR OFF)

# cmake -DOUT=FILE.cc -DFILES=PATH,PATH… -P embed.cmake
#
# Writes a source with the texts of the files of the web page. It defines switchyard::page::Assets()
# (src/server/page/assets.h). Files are text without NUL and without the delimiter `)embedded"`.
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")

string(REPLACE "," ";" files "${FILES}")
set(source "// Made by cmake/embed.cmake.\n#include \"server/page/assets.h\"\n\nnamespace switchyard::page {\nnamespace {\n"
  "constexpr Asset kAssets[] = {\n")
string(CONCAT source ${source})
foreach(file ${files})
  get_filename_component(name ${file} NAME)
  get_filename_component(ending ${file} LAST_EXT)
  string(SUBSTRING ${ending} 1 -1 ending)
  if(NOT DEFINED type_${ending})
    message(FATAL_ERROR "${file}: its content type is unknown")
  endif()
  file(READ ${file} text)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  string(APPEND source "{.name = \"${name}\", .content_type = \"${type_${ending}}\", .etag = \"\\\"${hash}\\\"\", .text =\n"
    "R\"embedded(" "${text}" ")embedded\"},\n")
endforeach()
string(APPEND source "};\n}  // namespace\n\nstd::span<const Asset> Assets() { return kAssets; }\n\n}  // namespace switchyard::page\n")
file(WRITE ${OUT} "${source}")

// The one statement that each kind of sum needs of device/ptx/wgmma.h. An instruction has a register for every two or four
// values of a column group, 128 at most, and a statement of inline PTX has a fixed list of them: here all 128 stand in the
// list, and those that a shape lacks end up in a comment, which a mark behind the last register begins. What else differs
// between instructions is text that templates put together (constraint "C").
// CUDA, "Inline PTX Assembly": https://docs.nvidia.com/cuda/inline-ptx-assembly/#constraints
#pragma once

#include <cstdint>

namespace warpsmith::ptx::detail {

template <bool ends>
struct Mark {
  static constexpr char text[] = " ";
};
template <>
struct Mark<true> {
  static constexpr char text[] = "/*";
};

// Where a lies: the instruction has one of the two, and the other one is a comment.
struct SharedA {
  static constexpr char before[] = " ", between[] = "/*", after[] = "*/";
  uint64_t descriptor;
  uint32_t words[4] = {};
};
struct RegisterA {
  static constexpr char before[] = "/*", between[] = "*/", after[] = " ";
  uint64_t descriptor = 0;
  uint32_t words[4];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Sums in f32: four registers for eight columns.
template <class Text, class A, int used>
__device__ __forceinline__ void wgmma_statement(float (&d)[used], const A& a, uint64_t b, bool adds) {
  float r[128];
#pragma unroll
  for (int i = 0; i < used; ++i) r[i] = d[i];
  asm volatile(
      "{\n"
      "  .reg .pred adds;\n"
      "  setp.ne.b32 adds, %170, 0;\n"
      "  wgmma.mma_async.sync.aligned.%160 {"
      "%0, %1, %2, %3 %128, %4, %5, %6, %7 %129, %8, %9, %10, %11 %130, %12, %13, %14, %15 %131"
      ", %16, %17, %18, %19 %132, %20, %21, %22, %23 %133, %24, %25, %26, %27 %134, %28, %29, %30, %31 %135"
      ", %32, %33, %34, %35 %136, %36, %37, %38, %39 %137, %40, %41, %42, %43 %138, %44, %45, %46, %47 %139"
      ", %48, %49, %50, %51 %140, %52, %53, %54, %55 %141, %56, %57, %58, %59 %142, %60, %61, %62, %63 %143"
      ", %64, %65, %66, %67 %144, %68, %69, %70, %71 %145, %72, %73, %74, %75 %146, %76, %77, %78, %79 %147"
      ", %80, %81, %82, %83 %148, %84, %85, %86, %87 %149, %88, %89, %90, %91 %150, %92, %93, %94, %95 %151"
      ", %96, %97, %98, %99 %152, %100, %101, %102, %103 %153, %104, %105, %106, %107 %154, %108, %109, %110, %111 %155"
      ", %112, %113, %114, %115 %156, %116, %117, %118, %119 %157, %120, %121, %122, %123 %158, %124, %125, %126, %127 "
      "%159"
      " */}, %161 %162 %163 {%164, %165, %166, %167} %168, %169, adds %171;\n"
      "}"
      : "+f"(r[0]), "+f"(r[1]), "+f"(r[2]), "+f"(r[3]), "+f"(r[4]), "+f"(r[5]), "+f"(r[6]), "+f"(r[7]), "+f"(r[8]),
        "+f"(r[9]), "+f"(r[10]), "+f"(r[11]), "+f"(r[12]), "+f"(r[13]), "+f"(r[14]), "+f"(r[15]), "+f"(r[16]),
        "+f"(r[17]), "+f"(r[18]), "+f"(r[19]), "+f"(r[20]), "+f"(r[21]), "+f"(r[22]), "+f"(r[23]), "+f"(r[24]),
        "+f"(r[25]), "+f"(r[26]), "+f"(r[27]), "+f"(r[28]), "+f"(r[29]), "+f"(r[30]), "+f"(r[31]), "+f"(r[32]),
        "+f"(r[33]), "+f"(r[34]), "+f"(r[35]), "+f"(r[36]), "+f"(r[37]), "+f"(r[38]), "+f"(r[39]), "+f"(r[40]),
        "+f"(r[41]), "+f"(r[42]), "+f"(r[43]), "+f"(r[44]), "+f"(r[45]), "+f"(r[46]), "+f"(r[47]), "+f"(r[48]),
        "+f"(r[49]), "+f"(r[50]), "+f"(r[51]), "+f"(r[52]), "+f"(r[53]), "+f"(r[54]), "+f"(r[55]), "+f"(r[56]),
        "+f"(r[57]), "+f"(r[58]), "+f"(r[59]), "+f"(r[60]), "+f"(r[61]), "+f"(r[62]), "+f"(r[63]), "+f"(r[64]),
        "+f"(r[65]), "+f"(r[66]), "+f"(r[67]), "+f"(r[68]), "+f"(r[69]), "+f"(r[70]), "+f"(r[71]), "+f"(r[72]),
        "+f"(r[73]), "+f"(r[74]), "+f"(r[75]), "+f"(r[76]), "+f"(r[77]), "+f"(r[78]), "+f"(r[79]), "+f"(r[80]),
        "+f"(r[81]), "+f"(r[82]), "+f"(r[83]), "+f"(r[84]), "+f"(r[85]), "+f"(r[86]), "+f"(r[87]), "+f"(r[88]),
        "+f"(r[89]), "+f"(r[90]), "+f"(r[91]), "+f"(r[92]), "+f"(r[93]), "+f"(r[94]), "+f"(r[95]), "+f"(r[96]),
        "+f"(r[97]), "+f"(r[98]), "+f"(r[99]), "+f"(r[100]), "+f"(r[101]), "+f"(r[102]), "+f"(r[103]), "+f"(r[104]),
        "+f"(r[105]), "+f"(r[106]), "+f"(r[107]), "+f"(r[108]), "+f"(r[109]), "+f"(r[110]), "+f"(r[111]), "+f"(r[112]),
        "+f"(r[113]), "+f"(r[114]), "+f"(r[115]), "+f"(r[116]), "+f"(r[117]), "+f"(r[118]), "+f"(r[119]), "+f"(r[120]),
        "+f"(r[121]), "+f"(r[122]), "+f"(r[123]), "+f"(r[124]), "+f"(r[125]), "+f"(r[126]), "+f"(r[127])
      : "C"(Mark<used == 4>::text), "C"(Mark<used == 8>::text), "C"(Mark<used == 12>::text),
        "C"(Mark<used == 16>::text), "C"(Mark<used == 20>::text), "C"(Mark<used == 24>::text),
        "C"(Mark<used == 28>::text), "C"(Mark<used == 32>::text), "C"(Mark<used == 36>::text),
        "C"(Mark<used == 40>::text), "C"(Mark<used == 44>::text), "C"(Mark<used == 48>::text),
        "C"(Mark<used == 52>::text), "C"(Mark<used == 56>::text), "C"(Mark<used == 60>::text),
        "C"(Mark<used == 64>::text), "C"(Mark<used == 68>::text), "C"(Mark<used == 72>::text),
        "C"(Mark<used == 76>::text), "C"(Mark<used == 80>::text), "C"(Mark<used == 84>::text),
        "C"(Mark<used == 88>::text), "C"(Mark<used == 92>::text), "C"(Mark<used == 96>::text),
        "C"(Mark<used == 100>::text), "C"(Mark<used == 104>::text), "C"(Mark<used == 108>::text),
        "C"(Mark<used == 112>::text), "C"(Mark<used == 116>::text), "C"(Mark<used == 120>::text),
        "C"(Mark<used == 124>::text), "C"(Mark<used == 128>::text), "C"(Text::Opcode::text), "C"(A::before),
        "l"(a.descriptor), "C"(A::between), "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]),
        "C"(A::after), "l"(b), "r"(static_cast<int>(adds)), "C"(Text::Modes::text));
#pragma unroll
  for (int i = 0; i < used; ++i) d[i] = r[i];
}

// Sums in f16, two registers for eight columns, or in s32, four: words in either case.
template <class Text, class A, class Word, int used>
__device__ __forceinline__ void wgmma_statement(Word (&d)[used], const A& a, uint64_t b, bool adds) {
  static_assert(sizeof(Word) == 4);
  Word r[128];
#pragma unroll
  for (int i = 0; i < used; ++i) r[i] = d[i];
  asm volatile(
      "{\n"
      "  .reg .pred adds;\n"
      "  setp.ne.b32 adds, %202, 0;\n"
      "  wgmma.mma_async.sync.aligned.%192 {"
      "%0, %1 %128, %2, %3 %129, %4, %5 %130, %6, %7 %131, %8, %9 %132, %10, %11 %133, %12, %13 %134, %14, %15 %135"
      ", %16, %17 %136, %18, %19 %137, %20, %21 %138, %22, %23 %139, %24, %25 %140, %26, %27 %141, %28, %29 %142, %30, "
      "%31 %143"
      ", %32, %33 %144, %34, %35 %145, %36, %37 %146, %38, %39 %147, %40, %41 %148, %42, %43 %149, %44, %45 %150, %46, "
      "%47 %151"
      ", %48, %49 %152, %50, %51 %153, %52, %53 %154, %54, %55 %155, %56, %57 %156, %58, %59 %157, %60, %61 %158, %62, "
      "%63 %159"
      ", %64, %65 %160, %66, %67 %161, %68, %69 %162, %70, %71 %163, %72, %73 %164, %74, %75 %165, %76, %77 %166, %78, "
      "%79 %167"
      ", %80, %81 %168, %82, %83 %169, %84, %85 %170, %86, %87 %171, %88, %89 %172, %90, %91 %173, %92, %93 %174, %94, "
      "%95 %175"
      ", %96, %97 %176, %98, %99 %177, %100, %101 %178, %102, %103 %179, %104, %105 %180, %106, %107 %181, %108, %109 "
      "%182, %110, %111 %183"
      ", %112, %113 %184, %114, %115 %185, %116, %117 %186, %118, %119 %187, %120, %121 %188, %122, %123 %189, %124, "
      "%125 %190, %126, %127 %191"
      " */}, %193 %194 %195 {%196, %197, %198, %199} %200, %201, adds %203;\n"
      "}"
      : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]), "+r"(r[4]), "+r"(r[5]), "+r"(r[6]), "+r"(r[7]), "+r"(r[8]),
        "+r"(r[9]), "+r"(r[10]), "+r"(r[11]), "+r"(r[12]), "+r"(r[13]), "+r"(r[14]), "+r"(r[15]), "+r"(r[16]),
        "+r"(r[17]), "+r"(r[18]), "+r"(r[19]), "+r"(r[20]), "+r"(r[21]), "+r"(r[22]), "+r"(r[23]), "+r"(r[24]),
        "+r"(r[25]), "+r"(r[26]), "+r"(r[27]), "+r"(r[28]), "+r"(r[29]), "+r"(r[30]), "+r"(r[31]), "+r"(r[32]),
        "+r"(r[33]), "+r"(r[34]), "+r"(r[35]), "+r"(r[36]), "+r"(r[37]), "+r"(r[38]), "+r"(r[39]), "+r"(r[40]),
        "+r"(r[41]), "+r"(r[42]), "+r"(r[43]), "+r"(r[44]), "+r"(r[45]), "+r"(r[46]), "+r"(r[47]), "+r"(r[48]),
        "+r"(r[49]), "+r"(r[50]), "+r"(r[51]), "+r"(r[52]), "+r"(r[53]), "+r"(r[54]), "+r"(r[55]), "+r"(r[56]),
        "+r"(r[57]), "+r"(r[58]), "+r"(r[59]), "+r"(r[60]), "+r"(r[61]), "+r"(r[62]), "+r"(r[63]), "+r"(r[64]),
        "+r"(r[65]), "+r"(r[66]), "+r"(r[67]), "+r"(r[68]), "+r"(r[69]), "+r"(r[70]), "+r"(r[71]), "+r"(r[72]),
        "+r"(r[73]), "+r"(r[74]), "+r"(r[75]), "+r"(r[76]), "+r"(r[77]), "+r"(r[78]), "+r"(r[79]), "+r"(r[80]),
        "+r"(r[81]), "+r"(r[82]), "+r"(r[83]), "+r"(r[84]), "+r"(r[85]), "+r"(r[86]), "+r"(r[87]), "+r"(r[88]),
        "+r"(r[89]), "+r"(r[90]), "+r"(r[91]), "+r"(r[92]), "+r"(r[93]), "+r"(r[94]), "+r"(r[95]), "+r"(r[96]),
        "+r"(r[97]), "+r"(r[98]), "+r"(r[99]), "+r"(r[100]), "+r"(r[101]), "+r"(r[102]), "+r"(r[103]), "+r"(r[104]),
        "+r"(r[105]), "+r"(r[106]), "+r"(r[107]), "+r"(r[108]), "+r"(r[109]), "+r"(r[110]), "+r"(r[111]), "+r"(r[112]),
        "+r"(r[113]), "+r"(r[114]), "+r"(r[115]), "+r"(r[116]), "+r"(r[117]), "+r"(r[118]), "+r"(r[119]), "+r"(r[120]),
        "+r"(r[121]), "+r"(r[122]), "+r"(r[123]), "+r"(r[124]), "+r"(r[125]), "+r"(r[126]), "+r"(r[127])
      : "C"(Mark<used == 2>::text), "C"(Mark<used == 4>::text), "C"(Mark<used == 6>::text), "C"(Mark<used == 8>::text),
        "C"(Mark<used == 10>::text), "C"(Mark<used == 12>::text), "C"(Mark<used == 14>::text),
        "C"(Mark<used == 16>::text), "C"(Mark<used == 18>::text), "C"(Mark<used == 20>::text),
        "C"(Mark<used == 22>::text), "C"(Mark<used == 24>::text), "C"(Mark<used == 26>::text),
        "C"(Mark<used == 28>::text), "C"(Mark<used == 30>::text), "C"(Mark<used == 32>::text),
        "C"(Mark<used == 34>::text), "C"(Mark<used == 36>::text), "C"(Mark<used == 38>::text),
        "C"(Mark<used == 40>::text), "C"(Mark<used == 42>::text), "C"(Mark<used == 44>::text),
        "C"(Mark<used == 46>::text), "C"(Mark<used == 48>::text), "C"(Mark<used == 50>::text),
        "C"(Mark<used == 52>::text), "C"(Mark<used == 54>::text), "C"(Mark<used == 56>::text),
        "C"(Mark<used == 58>::text), "C"(Mark<used == 60>::text), "C"(Mark<used == 62>::text),
        "C"(Mark<used == 64>::text), "C"(Mark<used == 66>::text), "C"(Mark<used == 68>::text),
        "C"(Mark<used == 70>::text), "C"(Mark<used == 72>::text), "C"(Mark<used == 74>::text),
        "C"(Mark<used == 76>::text), "C"(Mark<used == 78>::text), "C"(Mark<used == 80>::text),
        "C"(Mark<used == 82>::text), "C"(Mark<used == 84>::text), "C"(Mark<used == 86>::text),
        "C"(Mark<used == 88>::text), "C"(Mark<used == 90>::text), "C"(Mark<used == 92>::text),
        "C"(Mark<used == 94>::text), "C"(Mark<used == 96>::text), "C"(Mark<used == 98>::text),
        "C"(Mark<used == 100>::text), "C"(Mark<used == 102>::text), "C"(Mark<used == 104>::text),
        "C"(Mark<used == 106>::text), "C"(Mark<used == 108>::text), "C"(Mark<used == 110>::text),
        "C"(Mark<used == 112>::text), "C"(Mark<used == 114>::text), "C"(Mark<used == 116>::text),
        "C"(Mark<used == 118>::text), "C"(Mark<used == 120>::text), "C"(Mark<used == 122>::text),
        "C"(Mark<used == 124>::text), "C"(Mark<used == 126>::text), "C"(Mark<used == 128>::text),
        "C"(Text::Opcode::text), "C"(A::before), "l"(a.descriptor), "C"(A::between), "r"(a.words[0]), "r"(a.words[1]),
        "r"(a.words[2]), "r"(a.words[3]), "C"(A::after), "l"(b), "r"(static_cast<int>(adds)), "C"(Text::Modes::text));
#pragma unroll
  for (int i = 0; i < used; ++i) d[i] = r[i];
}

#endif

}  // namespace warpsmith::ptx::detail

// The 3x3 convolution of stride 1, and the gradients of its input and of its weight, from tiles that hold their halo in
// shared memory: a pixel is read from memory about once, not once per tap.
//
// halo.py puts this file before convolution.cu or weight_gradient.cu, and compiles them for one shape, given by macros:
//   CHANNELS  read and written: 16, 32 or 64      WIDTH, HEIGHT  of the maps
//   ROWS      image rows of a tile; a part of an image, or several of them
//   WARPS     of a program
//   ENTER     1: the kernel applies the BatchNorm and ReLU below to x
//   BACK      of convolution: 0 forward, 1 gradient of the input, 2 the same plus the gradient of a shortcut
//   SPLIT     of weight_gradient: warps that share a part of the weight's gradient, each with some of the pixels
//
// Maps are bfloat16 with the channels of a pixel together; sums are float32, in a fixed order. Warp instructions and
// accesses to global memory go through the functions at the top, which a test replaces by functions of the same names
// that check every address, to run these files on a CPU.

typedef unsigned int u32;
typedef unsigned short u16;

#ifndef EMULATED
#define SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define INLINE __device__ __forceinline__

struct __align__(16) u128 { u32 x, y, z, w; };
struct __align__(8) Pair { float x, y; };

INLINE u32 shared_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

INLINE void load_matrices(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

INLINE void load_turned(u32 (&to)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}

INLINE void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory; zeros if there is nothing to copy.
INLINE void copy_later(u32 to, const u16* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
INLINE void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> INLINE void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

INLINE float across(float value, int lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }
INLINE void barrier() { __syncthreads(); }

template <typename T> INLINE T read(const void* from) { return *reinterpret_cast<const T*>(from); }
template <typename T> INLINE void write(void* to, T value) { *reinterpret_cast<T*>(to) = value; }

// Two numbers in bfloat16, rounded to the nearest.
INLINE u32 rounded(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
INLINE float as_float(u32 bits) { return __uint_as_float(bits); }
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define THREAD ((int)threadIdx.x)
#define PROGRAM ((int)blockIdx.x)
#endif

INLINE float low(u32 both) { return as_float(both << 16); }
INLINE float high(u32 both) { return as_float(both & 0xffff0000u); }

constexpr int C = CHANNELS, W = WIDTH, H = HEIGHT;
constexpr int THREADS = 32 * WARPS;
constexpr int M = ROWS * W;                      // pixels of a tile
constexpr int CHUNKS = C / 8;                    // a pixel's channels, 16 bytes each
constexpr int WIDE = W + 2;                      // with a column of zeros on either side
constexpr int BLOCK = ROWS < H ? ROWS : H;       // rows that share a halo
constexpr int HALO_ROWS = ROWS / BLOCK * (BLOCK + 2);
constexpr int STEP = 2 * C + 16;                 // bytes from pixel to pixel: eight consecutive ones use different banks
constexpr int TILE_BYTES = HALO_ROWS * WIDE * STEP;
constexpr bool FULL = ROWS <= H;                 // all tiles are full: each is a part of an image
static_assert(ROWS % BLOCK == 0 && H % BLOCK == 0, "a tile is a part of an image, or several images");
static_assert(THREADS % (W * CHUNKS) == 0, "a thread copies the same place of several rows");

// Offset of 16 bytes of a row of C numbers.
INLINE constexpr int place(int row, int chunk) { return row * STEP + 16 * chunk; }

// The halo's pixel above and to the left of a tile's pixel: tap (r, s) is r rows below, s columns to the right.
INLINE int corner(int pixel) {
    int row = pixel / W;
    return (row + 2 * (row / BLOCK)) * WIDE + pixel % W;
}
INLINE constexpr int away(int tap) { return place(tap / 3 * WIDE + tap % 3, 0); }

INLINE void no_columns(unsigned char* tile) {
    for (int i = THREAD; i < HALO_ROWS * 2 * CHUNKS; i += THREADS) {
        int row = i / (2 * CHUNKS), side = i / CHUNKS % 2;
        *reinterpret_cast<u128*>(tile + place(row * WIDE + side * (W + 1), i % CHUNKS)) = u128{0, 0, 0, 0};
    }
}

// The part of a tile and its halo that a thread copies: the same 16 bytes of a pixel in several rows.
constexpr int LINE = W * CHUNKS, TOGETHER = THREADS / LINE, COPIES = (HALO_ROWS + TOGETHER - 1) / TOGETHER;

struct Copied {
    int offset;  // in the maps, from the start of the tile
    bool real;   // whether there is such a row
    bool there;  // whether it is inside the images
};

INLINE Copied copied(int i, int tile, int pixels) {
    const int row = THREAD / LINE + i * TOGETHER, top = FULL ? tile * ROWS % H : 0;
    const int block = FULL ? 0 : row / (BLOCK + 2), line = row - 2 * block - 1, h = top + line - block * BLOCK;
    const bool real = HALO_ROWS % TOGETHER == 0 || row < HALO_ROWS;
    return {line * (W * C), real, real && h >= 0 && h < H && (FULL || (tile * ROWS + line) * W < pixels)};
}

INLINE int copied_to() { return place(THREAD / LINE * WIDE + THREAD / CHUNKS % W + 1, THREAD % CHUNKS); }

// Starts the copy of a tile and its halo; pixels outside the images are zero.
INLINE void fetch(u32 to, const u16* x, int tile, int pixels) {
    const int begin = (tile * ROWS * W + THREAD / CHUNKS % W) * C + 8 * (THREAD % CHUNKS);
    to += copied_to();
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const Copied one = copied(i, tile, pixels);
        if (one.real) copy_later(to + i * TOGETHER * WIDE * STEP, one.there ? x + (begin + one.offset) : x, one.there);
    }
}

// BatchNorm and ReLU, of the 16 bytes that a thread copies of each pixel.
struct Entry {
    float scale[8], offset[8];

    INLINE Entry(const float* norm, const float* gamma, const float* beta) {
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const int channel = 8 * (THREAD % CHUNKS) + c;
            scale[c] = read<float>(norm + C + channel) * read<float>(gamma + channel);
            offset[c] = read<float>(beta + channel) - read<float>(norm + channel) * scale[c];
        }
    }

    // A thread can change its own copies when they are complete, before others read them.
    INLINE void operator()(unsigned char* tile, int number, int pixels) const {
        tile += copied_to();
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            if (copied(i, number, pixels).there) {
                u128* at = reinterpret_cast<u128*>(tile + i * TOGETHER * WIDE * STEP);
                const u32 two[4] = {at->x, at->y, at->z, at->w};
                u32 left[4];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float one = low(two[c]) * scale[2 * c] + offset[2 * c];
                    const float other = high(two[c]) * scale[2 * c + 1] + offset[2 * c + 1];
                    left[c] = rounded(one > 0 ? one : 0.0f, other > 0 ? other : 0.0f);
                }
                *at = u128{left[0], left[1], left[2], left[3]};
            }
        }
    }
};

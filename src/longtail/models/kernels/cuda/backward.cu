// The gradients of a convolution's weight and of its input at once: what goes between them, the gradient of the
// convolution's output, stays in shared memory; after pieces.cu. For 16 and 32 channels: a wider weight's gradient fills
// all registers by itself.

constexpr int LOADS = M * CHUNKS / THREADS;  // of 16 bytes of x, by a thread
static_assert(C < 64 && M * CHUNKS % THREADS == 0 && M % (16 * WARPS) == 0, "every thread has the same to do");

// As ``weight_gradient`` and then ``convolution`` with BACK. JOIN: x, what the convolution read, is also what left the
// ReLU below, and the shortcut's gradient joins there. Otherwise x is made of ``below``, as an Entry does.
KERNEL(THREADS) backward(
    const u16* gradient, const u16* y, const float* sums, const float* norm, const float* gamma, const u16* weight,
    const u16* x, const u16* below, const float* norm_below, const float* gamma_below, const float* beta_below,
    const u16* skip, u16* out, float* partial, float* parts, float* grad_gamma, float* grad_beta, int pixels, int per,
    int runs) {
    SHARED(shared);
    unsigned char *held = shared + TILE_BYTES, *weights = held + M * STEP;  // x, and the weight
    float* totals = reinterpret_cast<float*>(weights + 9 * C * STEP);
    const u32 tile_at = shared_address(shared), held_at = shared_address(held), weight_at = shared_address(weights);
    const int lane = THREAD % 32, warp = THREAD / 32, mine = lane % 4 * MINE, chunk = THREAD % CHUNKS;
    const int begin = PROGRAM * per, tiles = (pixels + M - 1) / M;
    const int end = begin + per < tiles ? begin + per : tiles;

    u128 g[COPIES], v[COPIES], entering[LOADS];
    auto ask = [&](int tile) {
        const int from = (tile * ROWS * W + THREAD / CHUNKS % W) * C + 8 * chunk;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const Copied one = copied(i, tile, pixels);
            if (one.there) {
                g[i] = read<u128>(gradient + (from + one.offset));
                v[i] = read<u128>(y + (from + one.offset));
            }
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int at = tile * M + (THREAD + i * THREADS) / CHUNKS;
            if (FULL || at < pixels) entering[i] = read<u128>((JOIN ? x : below) + (at * C + 8 * chunk));
        }
    };
    ask(begin);
    no_columns(shared);
    hold_weight(weights, weight);
    const Through back(sums, runs, norm, gamma, pixels, totals, grad_gamma, grad_beta);
#if !JOIN
    const Entry enter(norm_below, gamma_below, beta_below);
#endif
    Passing<JOIN> passing(norm_below, gamma_below, beta_below);
    Part<SPLIT, 2> part;
    u32 corners[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) corners[m] = tile_at + place(corner((warp * MT + m) * 16 + lane % 16), lane / 16);

    for (int tile = begin; tile < end; tile++) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const Copied one = copied(i, tile, pixels);
            if (one.real) {
                u128 left = {0, 0, 0, 0};
                if (one.there) left = back(g[i], v[i]);
                *reinterpret_cast<u128*>(shared + copied_to() + i * TOGETHER * WIDE * STEP) = left;
            }
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int pixel = (THREAD + i * THREADS) / CHUNKS;
            u128 left = {0, 0, 0, 0};
#if JOIN
            if (FULL || tile * M + pixel < pixels) left = entering[i];
#else
            if (FULL || tile * M + pixel < pixels) left = enter.entered(entering[i]);
#endif
            *reinterpret_cast<u128*>(held + place(pixel, chunk)) = left;
        }
        barrier();
        if (tile + 1 < end) ask(tile + 1);

#pragma unroll 1
        for (int step = part.share; step < M / 16; step += SPLIT) {
            u32 a[4];
            load_turned(a, held_at + place(16 * step + lane % 8 + lane / 16 * 8, 2 * part.row + lane / 8 % 2));
            const u32 around = tile_at + place(corner(16 * step + lane % 16), part.column * 2 + lane / 16);
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                u32 b[4];
                load_turned(b, around + away(8 - tap));  // whoever sees this pixel at a tap lies on the other side
                multiply(part.sum[tap][0], a, b[0], b[1]);
                multiply(part.sum[tap][1], a, b[2], b[3]);
            }
        }
        float sum[MT][NT][4];
        convolve<false>(sum, corners, weight_at, nullptr);
        barrier();  // the tile may be overwritten

        const int pixel = tile * M + warp * MT * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int at = pixel + 8 * i;
            if (FULL || at < pixels) {
                Some beside, after;
                const Some maps = read_some(below, at, mine);
                if constexpr (JOIN) beside = read_some(skip, at, mine), after = read_some(x, at, mine);
                float value[MINE];
#pragma unroll
                for (int c = 0; c < MINE; c++) value[c] = sum[i / 2][c / 2][i % 2 * 2 + c % 2];
                write_some(out, at, mine, passing(value, maps, beside, after));
            }
        }
    }
    gather_sums(passing.first, passing.second, totals);
    for (int c = THREAD; c < C; c += THREADS) {
        float one = 0.0f, two = 0.0f;
        for (int w = 0; w < WARPS; w++) one += totals[2 * w * C + c], two += totals[(2 * w + 1) * C + c];
        write<float>(partial + 2 * PROGRAM * C + c, one);
        write<float>(partial + (2 * PROGRAM + 1) * C + c, two);
    }
    barrier();  // what was summed up has been read
    part.write_up(shared, parts);
}

! Fortran: a wave that spreads over a grid by the sine-Gordon equation: three arrays, each step reads two of them and writes the third.
!
! waves SIDE STEPS: prints a sum that depends on the arguments alone.
program waves
    implicit none
    real(8), allocatable :: before(:, :), now(:, :), after(:, :)
    character(16) :: text
    integer :: side, steps, step, i, j
    call get_command_argument(1, text)
    read (text, *) side
    call get_command_argument(2, text)
    read (text, *) steps
    allocate (before(side, side), now(side, side), after(side, side))
    do j = 1, side
        do i = 1, side
            now(i, j) = exp(-((i - side / 3)**2 + (j - side / 2)**2) / 5000.0d0)
        end do
    end do
    before = now
    after = 0
    do step = 1, steps
        do j = 2, side - 1
            do i = 2, side - 1
                after(i, j) = 2 * now(i, j) - before(i, j) &
                    + 0.2d0 * (now(i - 1, j) + now(i + 1, j) + now(i, j - 1) + now(i, j + 1) - 4 * now(i, j)) &
                    - 0.01d0 * sin(now(i, j))
            end do
        end do
        before = now
        now = after
    end do
    print '(es24.16)', sum(now * now)
end program waves

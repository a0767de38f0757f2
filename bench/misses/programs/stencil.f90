! Heat in a plane: each step reads one array and writes another one.
program stencil
  implicit none
  integer, parameter :: n = 3000, steps = 4
  double precision, allocatable :: now(:, :), next(:, :)
  integer :: i, j, step
  allocate (now(n, n), next(n, n))
  do j = 1, n
    do i = 1, n
      now(i, j) = sin(dble(i) * 0.37d0) * cos(dble(j) * 0.11d0)
    end do
  end do
  next = now
  do step = 1, steps
    do j = 2, n - 1
      do i = 2, n - 1
        next(i, j) = 0.25d0 * (now(i - 1, j) + now(i + 1, j) + now(i, j - 1) + now(i, j + 1))
      end do
    end do
    now = next
  end do
  print *, sum(now)
end program

;;; Common Lisp: a hash table of lists and strings that are replaced at random, and sorted in the end.
;;;
;;; tables.lisp KEYS CHANGES: prints a sum that depends on the arguments alone.
(declaim (optimize (speed 2)))

(defvar *state* 12345)
(declaim (type fixnum *state*))

(defun below (n)
  (declare (type fixnum n))
  (setf *state* (mod (* *state* 16807) 2147483647))
  (mod *state* n))

(defun make-entry (nr)
  (list nr (format nil "entry ~d" (below 100000)) (loop repeat (below 12) collect (below 1000))))

(defun work (keys changes)
  (declare (type fixnum keys changes))
  (let ((table (make-hash-table)) (sum 0))
    (declare (type fixnum sum))
    (dotimes (i keys) (setf (gethash i table) (make-entry i)))
    (dotimes (i changes)
      (let* ((key (below keys)) (old (gethash key table)))
        (setf sum (mod (+ (* sum 31) (the fixnum (first old)) (length (the list (third old)))) 1000000007))
        (setf (gethash key table) (make-entry i))))
    (let ((all (loop for entry being the hash-values of table collect entry)))
      (dolist (entry (sort all #'< :key #'first))
        (setf sum (mod (+ (* sum 31) (length (the string (second entry)))) 1000000007))))
    (format t "~d entries, ~d~%" (hash-table-count table) sum)))

(let ((arguments (last sb-ext:*posix-argv* 2)))
  (work (parse-integer (first arguments)) (parse-integer (second arguments))))
